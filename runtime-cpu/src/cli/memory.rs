//! Memory of this process, where the system tells.

use std::fs;

/// The most memory this process has had in use since the start or [`forget_peak`].
pub fn peak_rss_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Measures the peak from now on. Where the system does not allow that, the peak stays that of the whole run.
pub fn forget_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

//! Where the command writes, and how it fails.

use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use ecokv::Error;
use indicatif::{ProgressBar, ProgressStyle};

/// Why the command ends early.
#[derive(Debug)]
pub enum Failure {
    /// Something the user can mend.
    Mendable(String),
    /// A bug in this program.
    Bug(String),
    /// Nobody reads the output any more: `ecokv ... | head`.
    ClosedPipe,
}

impl Failure {
    /// Says it on stderr, on one line; returns the exit status.
    pub fn report(&self) -> ExitCode {
        let (message, status) = match self {
            Failure::ClosedPipe => return ExitCode::SUCCESS,
            Failure::Mendable(message) => (format!("error: {message}"), 2),
            Failure::Bug(message) => (format!("error: internal error, please report it: {message}"), 1),
        };
        stderr_line(&message);
        ExitCode::from(status)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        use ecokv_core::Error as Core;
        match e {
            // Another method, another budget or other parameters mend these; the runtime makes the rest.
            Error::Evict(
                Core::BudgetTooSmall { .. }
                | Core::Config(_)
                | Core::MissingObservation(_)
                | Core::LengthMismatch { what: "head scores", .. },
            ) => Failure::Mendable(e.to_string()),
            Error::Evict(_) => Failure::Bug(e.to_string()),
            _ => Failure::Mendable(e.to_string()),
        }
    }
}

/// Writes to stdout at once.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Mendable(format!("standard output: {e}")),
    })
}

/// One `note:` line on stderr: something is not as asked or expected.
pub fn note(text: &str) {
    stderr_line(&format!("note: {text}"));
}

/// A line on stderr. Names from files may hold anything, terminal sequences included.
pub fn stderr_line(line: &str) {
    // Nothing can be said about a stderr that is gone.
    let _ = writeln!(io::stderr(), "{}", plain(line));
}

/// The text with control characters as spaces.
pub fn plain(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) { text.replace(char::is_control, " ").into() } else { text.into() }
}

/// Rows as aligned columns, two spaces between them.
pub fn columns(rows: &[Vec<String>]) -> String {
    let n = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..n).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &w)| format!("{:<w$}", plain(cell)));
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// Bytes in the unit that suits them.
pub fn bytes(n: u64) -> String {
    match n {
        0..0x400 => format!("{n} B"),
        0x400..0x10_0000 => format!("{:.1} KiB", n as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", n as f64 / 1024f64.powi(2)),
        _ => format!("{:.2} GiB", n as f64 / 1024f64.powi(3)),
    }
}

/// What is going on, while it is, if somebody watches.
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// Shows nothing unless stderr is a terminal.
    pub fn new() -> Progress {
        if !io::stderr().is_terminal() {
            return Progress(None);
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress(Some(bar))
    }

    /// Says what is done now.
    pub fn stage(&self, what: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(plain(what).into_owned());
        }
    }

    /// Runs `f` with the line out of the way.
    pub fn aside(&self, f: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(f),
            None => f(),
        }
    }

    /// Takes the line away for good.
    pub fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    /// An error message gets the line to itself.
    fn drop(&mut self) {
        self.clear();
    }
}

//! An allocator that counts what the current thread holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// What a call took.
#[derive(Default, Debug)]
pub struct Cost {
    /// Most bytes held at once, beyond what was held before.
    pub peak: usize,
    /// Wall time.
    pub time: Duration,
}

/// Runs `f` and counts the allocations of this thread.
pub fn measured<T>(f: impl FnOnce() -> T) -> (T, Cost) {
    LIVE.set(0);
    PEAK.set(0);
    let start = Instant::now();
    let result = f();
    (result, Cost { peak: PEAK.get().max(0) as usize, time: start.elapsed() })
}

struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // The cells are gone while a thread ends.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call goes to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

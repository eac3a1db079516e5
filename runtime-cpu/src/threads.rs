//! One pool of an explicit size; nothing else in the crate starts threads.
//!
//! A decode step has a hundred and more parallel regions of a few microseconds each, so workers spin between them: a
//! region costs about a microsecond, where waking sleeping threads costs fifty. A worker that finds nothing to do for
//! 0.3 ms goes to sleep.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;

/// How long a worker waits awake: longer than what lies between two regions of a step, short enough to be no burden on
/// a battery between tokens.
const SPIN: Duration = Duration::from_micros(300);

/// A pool of worker threads. Work is split so that results never depend on the number of threads.
///
/// One region runs at a time. A region that is started while another one runs (from a second session, or from inside a
/// task) runs on the thread that started it.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held while a region runs.
    owner: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
    n_threads: usize,
}

struct Shared {
    /// Bits 33..: number of the region; bit 32: workers may join it; bits 0..32: workers that are in it.
    state: AtomicU64,
    /// What the region does. Written by the owner while no worker is in a region, read by workers that joined one.
    job: UnsafeCell<Option<Job>>,
    /// Next task of the region.
    next: AtomicUsize,
    /// A task panicked.
    panicked: AtomicBool,
    stop: AtomicBool,
    /// Workers that run.
    started: AtomicUsize,
    sleepers: AtomicUsize,
    gate: Mutex<()>,
    wake: Condvar,
}

#[derive(Clone, Copy)]
struct Job {
    run: *const (dyn Fn(usize) + Sync),
    n_tasks: usize,
}

// SAFETY: `job` is written only while no worker can read it (see `Pool::tasks`); what it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is used only between the start and the end of the region that lends it.
unsafe impl Send for Shared {}

const OPEN: u64 = 1 << 32;
const REGION: u64 = 1 << 33;
const INSIDE: u64 = OPEN - 1;

impl Pool {
    /// A pool of `n_threads` threads, the calling one included; 0 means one per core. A single thread runs everything in
    /// place.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system refuses the threads.
    pub fn new(n_threads: usize) -> Result<Pool, Error> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let n_threads = if n_threads == 0 { cores } else { n_threads };
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            started: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            gate: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut pool = Pool { shared, owner: Mutex::new(()), workers: Vec::new(), n_threads };
        for i in 1..n_threads {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new().name(format!("ecokv-{i}")).spawn(move || shared.work());
            // The workers so far end when the pool is dropped.
            pool.workers.push(worker.map_err(|e| Error::Threads { n_threads, what: e.to_string() })?);
        }
        // What a thread takes to start, memory included, belongs here and not to the first steps of a session.
        while pool.shared.started.load(Ordering::Acquire) < pool.workers.len() {
            std::thread::yield_now();
        }
        Ok(pool)
    }

    /// Threads, the calling one included.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Calls `f(i)` for every `i` below `n_tasks`, in parallel, in no particular order.
    ///
    /// # Panics
    /// If a task panics, after the others have ended.
    pub fn tasks(&self, n_tasks: usize, f: impl Fn(usize) + Sync) {
        if n_tasks < 2 || self.workers.is_empty() {
            return (0..n_tasks).for_each(f);
        }
        let owner = match self.owner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(e)) => e.into_inner(), // a task panicked; the region was closed all the same
            Err(TryLockError::WouldBlock) => return (0..n_tasks).for_each(f),
        };
        let shared = &*self.shared;
        let run: &(dyn Fn(usize) + Sync) = &f;
        // SAFETY: only the lifetime changes. The pointer is read by workers inside this region, and `End` waits for the
        // last of them before `f` can go away, also when a task on this thread panics.
        let run: *const (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(run as *const (dyn Fn(usize) + Sync)) };
        // SAFETY: the previous region was closed and empty when it ended, and this thread holds `owner`.
        unsafe { *shared.job.get() = Some(Job { run, n_tasks }) };
        shared.next.store(0, Ordering::Relaxed);
        let region = (shared.state.load(Ordering::Relaxed) & !INSIDE & !OPEN).wrapping_add(REGION);
        shared.state.store(region | OPEN, Ordering::SeqCst);
        let end = End(shared);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _gate = shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
            shared.wake.notify_all();
        }
        shared.take_tasks(&f, n_tasks);
        drop(end);
        drop(owner);
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a task panicked");
    }

    /// Calls `f(i, chunk)` for every chunk of `len` items of `data`, in parallel.
    pub fn chunks<T: Send>(&self, data: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        let total = data.len();
        let base = Base(data.as_mut_ptr());
        self.tasks(total.div_ceil(len), |i| {
            let from = i * len;
            // SAFETY: every i is handed out once, so the parts are disjoint; they lie inside `data`, borrowed mutably.
            let part = unsafe { std::slice::from_raw_parts_mut(base.at(from), len.min(total - from)) };
            f(i, part);
        });
    }

    /// Cuts several buffers, each `(key, data, unit)`, into units of so many items, and calls `f(key, first, units)` for
    /// runs of neighbouring units of a buffer, in parallel; `first` is the number of the first of them in its buffer. Runs
    /// get shorter towards the end, so that all threads end together.
    pub fn runs<K: Sync, T: Send, const M: usize>(
        &self,
        parts: [(K, &mut [T], usize); M],
        f: impl Fn(&K, usize, &mut [T]) + Sync,
    ) {
        let parts = parts.map(|(key, data, unit)| (key, Base(data.as_mut_ptr()), data.len(), unit));
        let n_units: usize = parts.iter().map(|(_, _, total, unit)| total.div_ceil(*unit)).sum();
        let shares = if self.n_threads == 1 { 1 } else { 2 * self.n_threads }; // half of what is left, shared out
        let starts = || {
            let next = |from: &usize| from + (n_units - from).div_ceil(shares);
            std::iter::successors(Some(0), move |from| Some(next(from))).take_while(|from| *from < n_units)
        };
        self.tasks(starts().count(), |i| {
            let mut starts = starts().skip(i);
            let (mut from, mut to) = (starts.next().unwrap_or(n_units), starts.next().unwrap_or(n_units));
            for (key, base, total, unit) in &parts {
                let n = total.div_ceil(*unit);
                let (first, last) = (from.min(n), to.min(n));
                if first < last {
                    let (at, end) = (first * unit, (last * unit).min(*total));
                    // SAFETY: every i is handed out once and runs do not overlap; they lie inside `data`.
                    f(key, first, unsafe { std::slice::from_raw_parts_mut(base.at(at), end - at) });
                }
                (from, to) = (from.saturating_sub(n), to.saturating_sub(n));
            }
        });
    }

    /// Calls `f` for every item, in parallel.
    pub fn each<T: Send>(&self, items: Vec<T>, f: impl Fn(T) + Sync) {
        let mut items: Vec<Option<T>> = items.into_iter().map(Some).collect();
        self.chunks(&mut items, 1, |_, item| item.iter_mut().filter_map(Option::take).for_each(&f));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _gate = self.shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks.
            let _ = worker.join();
        }
    }
}

/// Closes the region and waits until no worker is inside.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut turns = 0_u32;
        while state & INSIDE != 0 {
            pause(&mut turns);
            state = self.0.state.load(Ordering::Acquire);
        }
    }
}

impl Shared {
    /// The life of a worker.
    fn work(&self) {
        self.started.fetch_add(1, Ordering::Release);
        let mut seen = 0;
        loop {
            let Some(state) = self.wait(seen) else { return };
            if self.state.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue; // another worker came first, or the region closed: look again
            }
            seen = state & !INSIDE;
            // SAFETY: this worker is inside the region, so the owner neither writes `job` nor lets go of the closure.
            let outcome = catch_unwind(AssertUnwindSafe(|| unsafe {
                if let Some(job) = *self.job.get() {
                    self.take_tasks(&*job.run, job.n_tasks);
                }
            }));
            if outcome.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// The state once it is that of an open region after `seen`; `None` when the pool ends.
    fn wait(&self, seen: u64) -> Option<u64> {
        let is_new = |state: u64| state & OPEN != 0 && state & !INSIDE != seen;
        let mut since = None;
        let mut turns = 0;
        loop {
            let state = self.state.load(Ordering::Acquire);
            if is_new(state) {
                return Some(state);
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            pause(&mut turns);
            // The clock is read now and then only.
            if turns.is_multiple_of(64) && since.get_or_insert_with(Instant::now).elapsed() > SPIN {
                let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                // An owner either sees the sleeper, or its region is seen here.
                while !is_new(self.state.load(Ordering::SeqCst)) && !self.stop.load(Ordering::SeqCst) {
                    gate = self.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
                since = None;
            }
        }
    }

    fn take_tasks(&self, run: &(dyn Fn(usize) + Sync), n_tasks: usize) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= n_tasks {
                return;
            }
            run(i);
        }
    }
}

/// Waits a moment; lets other threads run if there are more of them than cores.
fn pause(turns: &mut u32) {
    *turns = turns.wrapping_add(1);
    if *turns < 512 { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Start of a slice whose parts go to different threads.
pub(crate) struct Base<T>(pub(crate) *mut T);

// SAFETY: the parts are disjoint and their items may be sent.
unsafe impl<T: Send> Sync for Base<T> {}

impl<T> Base<T> {
    pub(crate) fn at(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for n_threads in [1, 2, 3, 7] {
            let pool = Pool::new(n_threads).unwrap();
            for round in 0..300 {
                let mut data = vec![0_u32; round];
                pool.chunks(&mut data, 3, |i, part| part.iter_mut().for_each(|v| *v += 1 + i as u32));
                let want: Vec<u32> = (0..round).map(|j| 1 + (j / 3) as u32).collect();
                assert_eq!(data, want);
                if round % 50 == 0 {
                    std::thread::sleep(2 * SPIN); // the workers are asleep when the next region comes
                }
            }
        }
    }

    #[test]
    fn runs_cover_every_unit_once_and_get_shorter() {
        for n_threads in [1, 2, 3, 7] {
            let pool = Pool::new(n_threads).unwrap();
            for (a, b) in [(0, 0), (1, 0), (0, 17), (64, 65), (160, 48), (1000, 3)] {
                let (mut x, mut y) = (vec![0; a], vec![0; b]);
                let longest = AtomicUsize::new(0);
                pool.runs([(1000, &mut x, 4), (2000, &mut y, 16)], |key, first, run| {
                    let unit = if *key == 1000 { 4 } else { 16 };
                    longest.fetch_max(run.len().div_ceil(unit), Ordering::Relaxed);
                    run.chunks_mut(unit)
                        .enumerate()
                        .for_each(|(i, u)| u.iter_mut().for_each(|v| *v += key + first + i));
                });
                assert_eq!(x, (0..a).map(|i| 1000 + i / 4).collect::<Vec<_>>());
                assert_eq!(y, (0..b).map(|i| 2000 + i / 16).collect::<Vec<_>>());
                let units = a.div_ceil(4) + b.div_ceil(16);
                let share = if n_threads == 1 { units } else { units.div_ceil(2 * n_threads) };
                assert!(longest.into_inner() <= share);
            }
        }
    }

    #[test]
    fn regions_inside_regions_and_from_other_threads_run() {
        let pool = Pool::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..50 {
                        pool.tasks(4, |_| pool.tasks(5, |i| _ = sum.fetch_add(i, Ordering::Relaxed)));
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * 50 * 4 * 10);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).unwrap();
        for bad in [0, 13] {
            let run = || pool.tasks(64, |i| assert_ne!(i, bad, "deliberate"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            let count = AtomicUsize::new(0);
            pool.tasks(64, |_| _ = count.fetch_add(1, Ordering::Relaxed));
            assert_eq!(count.into_inner(), 64);
        }
    }
}

//! One pool of an explicit size; nothing else in the crate starts threads.

use rayon::prelude::*;

use crate::Error;

/// A pool of worker threads. Work is split so that results never depend on the number of threads.
pub struct Pool {
    pool: Option<rayon::ThreadPool>,
    n_threads: usize,
}

impl Pool {
    /// A pool of `n_threads` workers; 0 means one per core. A single thread runs everything in place.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system refuses the threads.
    pub fn new(n_threads: usize) -> Result<Pool, Error> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let n_threads = if n_threads == 0 { cores } else { n_threads };
        if n_threads == 1 {
            return Ok(Pool { pool: None, n_threads });
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build();
        let pool = pool.map_err(|e| Error::Threads { n_threads, what: e.to_string() })?;
        Ok(Pool { pool: Some(pool), n_threads })
    }

    /// Worker threads.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Calls `f(i, chunk)` for every chunk of `len` items of `data`, in parallel.
    pub fn chunks<T: Send>(&self, data: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        match &self.pool {
            Some(pool) if data.len() > len => {
                pool.install(|| data.par_chunks_mut(len).enumerate().for_each(|(i, c)| f(i, c)));
            }
            _ => data.chunks_mut(len).enumerate().for_each(|(i, c)| f(i, c)),
        }
    }

    /// Calls `f` for every item, in parallel.
    pub fn each<T: Send>(&self, items: Vec<T>, f: impl Fn(T) + Sync) {
        match &self.pool {
            Some(pool) if items.len() > 1 => pool.install(|| items.into_par_iter().for_each(&f)),
            _ => items.into_iter().for_each(f),
        }
    }

    /// Runs everything that `f` starts on this pool's threads, which stay awake between its steps.
    pub fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(f),
            None => f(),
        }
    }
}

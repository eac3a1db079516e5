//! Reads so many bytes of memory again and again, as a decode step reads weights and cache, and prints how long that takes:
//! what a decode step over as many bytes would take if it did nothing else.
//!
//!     cargo run --release --example read_memory -- BYTES THREADS      {"bytes":..,"seconds":..}, the median pass

use std::error::Error;
use std::time::Instant;

use ecokv::threads::Pool;
use memmap2::MmapMut;

const PASSES: usize = 15;

/// What a thread takes at a time.
const RUN_BYTES: usize = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().ok_or("usage: read_memory BYTES THREADS");
    let (n_bytes, n_threads): (usize, usize) = (next()?.parse()?, next()?.parse()?);
    let pool = Pool::new(n_threads)?;
    let mut memory = MmapMut::map_anon(n_bytes.next_multiple_of(8).max(8))?;
    #[cfg(target_os = "linux")]
    memory.advise(memmap2::Advice::HugePage)?; // as weights and cache lie
    memory.fill(1);
    let mut seconds: Vec<f64> = (0..PASSES)
        .map(|_| {
            let start = Instant::now();
            pool.chunks(&mut memory, RUN_BYTES, |_, bytes| {
                // Four places at once: a core that follows a single one leaves memory idle.
                let lines = bytes.as_chunks::<8>().0.as_chunks::<16>().0;
                let quarter = lines.len() / 4;
                let mut sums = [0; 16];
                for line in (0..4 * quarter).map(|i| &lines[i % 4 * quarter + i / 4]) {
                    sums.iter_mut().zip(line).for_each(|(sum, word)| *sum ^= u64::from_ne_bytes(*word));
                }
                std::hint::black_box(sums);
            });
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    println!("{{\"bytes\":{n_bytes},\"seconds\":{}}}", seconds[PASSES / 2]);
    Ok(())
}

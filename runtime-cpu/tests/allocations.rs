//! Decoding allocates nothing, on any thread. Without the test harness, whose own thread would be counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use ecokv::cache::KvType;
use ecokv::{Engine, EngineOptions, Eviction, Prompt, Session, SessionOptions, argmax, methods};
use ecokv_core::LayerBudget;

const STEPS: usize = 60;

fn main() {
    decode_steps_allocate_nothing();
    println!("test decode_steps_allocate_nothing ... ok");
}

fn decode_steps_allocate_nothing() {
    for (model, n_threads) in [("llama", 1), ("llama", 3), ("llama-mixedq", 2), ("gemma3", 2)] {
        let name = if model == "llama-mixedq" { "model.gguf" } else { "model-f32.gguf" };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models").join(model).join(name);
        let engine = Engine::open(&path, None, EngineOptions { n_threads, ..EngineOptions::default() }).unwrap();
        let policy = methods::by_name("ecokv").unwrap().policy;
        let evicting = Eviction { policy, layer_budget: LayerBudget::Uniform, budget: 16 };
        for (kv_type, eviction) in [(KvType::F16, None), (KvType::F32, None), (KvType::F16, Some(evicting))] {
            let options = SessionOptions { n_ctx: 0, n_generate: STEPS + 1, kv_type, eviction };
            let mut session = Session::new(&engine, options).unwrap();
            let ids = (0..40).map(|i| 20 + i).collect();
            let mut id = argmax(&session.prefill(&Prompt::tokens(&engine, ids).unwrap()).unwrap());
            // The first step sizes its buffers. Past 64 rows a head is cut in two.
            id = argmax(session.decode(id).unwrap());
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            for _ in 0..STEPS {
                id = argmax(session.decode(id).unwrap());
            }
            let new = ALLOCATIONS.load(Ordering::SeqCst) - before;
            assert_eq!(new, 0, "{model}, {n_threads} threads, {kv_type:?}, evicting: {}", eviction.is_some());
        }
    }
}

/// Allocations of all threads so far.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

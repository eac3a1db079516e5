//! The fixed-capacity owners give what the slices give.
#![cfg(feature = "heapless")]

mod support;

use ecokv_core::owned::{KeepBuffer, WorkspaceBuffer, layer_budgets, route};
use ecokv_core::*;
use support::*;

#[test]
fn owners() {
    let l = Layer::random(&mut Rng(1), &[40, 30], 2, 8, 8, 1.0);
    let p = policy("ecokv");
    let mut w = WorkspaceBuffer::<2000, 80>::new(&p, l.shape(), 70).unwrap();
    let mut keep = KeepBuffer::<80, 2>::new(70, 2).unwrap();
    evict_layer(Dispatch::detect(), &p, 20, &l.view(), w.workspace(), keep.keep()).unwrap();
    let expected = evict(&p, 20, &l);
    assert_eq!(keep.head(0, 0), expected[0]);
    assert_eq!(keep.head(1, 40), expected[1]);
    assert_eq!(keep.kept().counts, [20, 20]);
    assert!(keep.head(2, 0).is_empty());
}

#[test]
fn capacities() {
    let shape = LayerShape { n_kv_heads: 2, group: 2, head_dim: 8 };
    let p = policy("ecokv");
    let need = p.workspace_len(shape, 70).unwrap();
    let short = WorkspaceBuffer::<100, 80>::new(&p, shape, 70).unwrap_err();
    assert_eq!(short, Error::WorkspaceTooSmall { what: "f32s", need: need.f32s, got: 100 });
    let short = KeepBuffer::<69, 2>::new(70, 2).unwrap_err();
    assert_eq!(short, Error::LengthMismatch { what: "indices", need: 70, got: 69 });
    let line = layer_budgets::<8>(LayerBudget::Pyramid { beta: 20 }, 4, 64, 8, 1000).unwrap();
    assert_eq!((line.len(), line.iter().sum::<u32>()), (4, 256));
    assert!(layer_budgets::<3>(LayerBudget::Uniform, 4, 64, 8, 1000).is_err());
    let text = "ecokv-route 1\nlayers 1\nheads 2\n0 ecokv 9";
    assert_eq!(route::<2>(text, 1, 2).unwrap().unwrap()[0].budget, Some(9));
    assert!(route::<2>(text, 3, 2).is_none());
    assert!(route::<2>(text, 2, 2).unwrap().is_err());
}

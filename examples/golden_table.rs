//! How far every model family is from recorded outputs of transformers, as a Markdown table:
//! `cargo run --release --example golden_table`, pasted into `docs/models.md`.

mod golden;

use golden::CASES;

fn main() -> Result<(), ecokv::Error> {
    println!("{}", golden::TITLES);
    for case in &CASES {
        println!("{}", case.row(&case.errors()?));
    }
    Ok(())
}

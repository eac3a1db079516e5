//! What each eviction method leaves of the demo model: exact match in percent on its 200 questions, as a Markdown table.
//!
//! `cargo run --release --example eviction_table [-- --window N]`; `--window` overrides the methods' own windows.

mod tinyvlm;

use ecokv::Eviction;
use ecokv::ops::Precision;
use ecokv_core::methods;
use tinyvlm::Result;

const METHODS: [&str; 5] = ["random", "streaming", "snapkv", "mixkv", "ecokv"];
const BUDGETS: [u32; 4] = [16, 32, 64, 128];

fn main() -> Result<()> {
    let window = window()?;
    let questions = tinyvlm::questions()?;
    let engine = tinyvlm::engine(Precision::Int16)?;
    let prompts = tinyvlm::prompts(&engine, &questions)?;
    let exact_match = |eviction| -> Result<f64> {
        Ok(tinyvlm::exact_match(&questions, &tinyvlm::answers(&engine, &prompts, eviction)?))
    };

    println!("| method | {} |", BUDGETS.map(|b| b.to_string()).join(" | "));
    println!("|---|{}", "---|".repeat(BUDGETS.len()));
    println!("| full |{}", format!(" {:.1} |", exact_match(None)?).repeat(BUDGETS.len()));
    for name in METHODS {
        let method = methods::by_name(name).ok_or("unknown method")?;
        let policy = window.map_or(method.policy, |w| method.policy.with_window(w));
        print!("| {name} |");
        for budget in BUDGETS {
            let eviction = Eviction { policy, layer_budget: method.layer_budget, budget };
            print!(" {:.1} |", exact_match(Some(eviction))?);
        }
        println!();
    }
    Ok(())
}

fn window() -> Result<Option<u32>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => Ok(None),
        [option, n] if option == "--window" => Ok(Some(n.parse()?)),
        _ => Err("usage: eviction_table [--window N]".into()),
    }
}

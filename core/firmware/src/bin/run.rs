//! Prints the report once per instruction set, each under a line `== name`. On a Cortex-M4 through a debugger's
//! semihosting, elsewhere to standard output.

#![cfg_attr(target_os = "none", no_std, no_main)]

use core::fmt::Write;

use ecokv_core::Dispatch;
use ecokv_firmware::{Stop, report};

fn print(out: &mut impl Write) -> Result<(), Stop> {
    for d in Dispatch::available() {
        writeln!(out, "== {}", d.name())?;
        report(d, out)?;
    }
    Ok(())
}

#[cfg(target_os = "none")]
mod board {
    use core::fmt::Write;
    use core::panic::PanicInfo;

    use cortex_m_rt::entry;
    use cortex_m_semihosting::{debug, hio};

    #[entry]
    fn main() -> ! {
        if let Ok(mut out) = hio::hstdout() {
            match super::print(&mut out) {
                Ok(()) => debug::exit(debug::EXIT_SUCCESS),
                Err(stop) => _ = writeln!(out, "{stop:?}"),
            }
        }
        fail()
    }

    #[panic_handler]
    fn panic(info: &PanicInfo<'_>) -> ! {
        if let Ok(mut out) = hio::hstdout() {
            _ = writeln!(out, "{info}");
        }
        fail()
    }

    fn fail() -> ! {
        debug::exit(debug::EXIT_FAILURE);
        loop {}
    }
}

#[cfg(not(target_os = "none"))]
fn main() -> std::process::ExitCode {
    let mut text = String::new();
    let printed = print(&mut text);
    print!("{text}");
    match printed {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(stop) => {
            eprintln!("{stop:?}");
            std::process::ExitCode::FAILURE
        }
    }
}

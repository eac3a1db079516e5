//! Chores: `cargo xtask` lists them.

mod library;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use library::{Build, run};

const USAGE: &str = "\
cargo xtask core FILE.a [--target TRIPLE]      the freestanding library of ecokv_core.h alone
cargo xtask install PREFIX [--target TRIPLE] [--profile PROFILE]
                                               headers, libraries, pkg-config, CMake and licences below PREFIX
cargo xtask package [--target TRIPLE]          the same as target/package/ecokv-VERSION-TRIPLE.tar.gz

Other targets need GNU binutils for them, and a linker as cargo's CARGO_TARGET_<TRIPLE>_LINKER.";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match chore(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::from(2)
        }
    }
}

fn chore(args: &[String]) -> Result<(), String> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (verb, mut rest) = words.split_first().ok_or(USAGE)?;
    let place = match *verb {
        "package" => None,
        "core" | "install" => {
            let (place, after) = rest.split_first().ok_or(USAGE)?;
            rest = after;
            Some(PathBuf::from(place))
        }
        _ => return Err(USAGE.into()),
    };
    let (mut target, mut profile) = (None, "release");
    for pair in rest.chunks(2) {
        match *pair {
            ["--target", triple] => target = Some(triple.to_owned()),
            ["--profile", name] => profile = name,
            _ => return Err(USAGE.into()),
        }
    }
    let build = Build::new(target, profile)?;
    match (*verb, place) {
        ("core", Some(file)) => build.core_library(&file),
        ("install", Some(prefix)) => install(&build, &prefix),
        _ => package(&build),
    }
}

fn install(build: &Build, prefix: &Path) -> Result<(), String> {
    let lib = prefix.join("lib");
    build.core_library(&lib.join("libecokv_core.a"))?;
    build.libraries(&lib)?;
    let bindings = build.root.join("bindings-c");
    let include = prefix.join("include");
    for header in ["core/include/ecokv_core.h", "include/ecokv.h", "include/ecokv.hpp"] {
        copy(&bindings.join(header), &include)?;
    }
    let doc = prefix.join("share/doc/ecokv");
    for text in ["LICENSE-MIT", "LICENSE-APACHE", "docs/c-api.md"] {
        copy(&build.root.join(text), &doc)?;
    }
    let packaging = bindings.join("packaging");
    for (template, folder) in [
        ("ecokv.pc", "pkgconfig"),
        ("ecokv_core.pc", "pkgconfig"),
        ("ecokv-config.cmake", "cmake/ecokv"),
        ("ecokv-config-version.cmake", "cmake/ecokv"),
    ] {
        let text = read(&packaging.join(template))?;
        let text = text.replace("@VERSION@", build.version).replace("@ABI@", &build.abi()?);
        write(&lib.join(folder).join(template), &text)?;
    }
    Ok(())
}

fn package(build: &Build) -> Result<(), String> {
    let name = format!("ecokv-{}-{}", build.version, build.triple);
    let folder = build.target_dir.join("package");
    let staged = folder.join(&name);
    let _ = std::fs::remove_dir_all(&staged); // there may be none
    install(build, &staged)?;
    let tarball = folder.join(format!("{name}.tar.gz"));
    // The same input gives the same file.
    let mut tar = Command::new("tar");
    tar.arg("--directory").arg(&folder).args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    run(tar.args(["--mtime=@0", "--create", "--gzip", "--file"]).arg(&tarball).arg(&name))?;
    println!("{}", tarball.display());
    Ok(())
}

fn copy(from: &Path, folder: &Path) -> Result<(), String> {
    let name = from.file_name().ok_or("a file has a name")?;
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    std::fs::copy(from, folder.join(name)).map_err(|e| format!("{}: {e}", from.display()))?;
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

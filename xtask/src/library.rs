//! The C libraries. What rustc makes of a static library is an archive with every object of the standard library; here it
//! becomes one object with what the interface needs, in which nothing but the interface is visible.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All that the freestanding library may leave to the program: what C compilers take for granted too.
const GIVEN: [&str; 5] = ["memcpy", "memmove", "memset", "memcmp", "bcmp"];

/// Where and for what libraries are built.
pub struct Build {
    pub root: PathBuf,
    pub target_dir: PathBuf,
    pub triple: String,
    pub version: &'static str,
    profile: String,
    /// Whether the triple was asked for, and is part of cargo's folders.
    cross: bool,
}

impl Build {
    pub fn new(target: Option<String>, profile: &str) -> Result<Build, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the crate lies in the repository")?;
        let host = || {
            let text = output(Command::new("rustc").arg("-vV"))?;
            let line = text.lines().find_map(|l| l.strip_prefix("host: "));
            line.map(str::to_owned).ok_or("rustc names no host".to_owned())
        };
        Ok(Build {
            root: root.to_owned(),
            target_dir: std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from),
            cross: target.is_some(),
            triple: target.map_or_else(host, Ok)?,
            version: VERSION,
            profile: profile.to_owned(),
        })
    }

    /// `ECOKV_ABI_VERSION`.
    pub fn abi(&self) -> Result<String, String> {
        let header = self.header("core/include/ecokv_core.h")?;
        let line = header.lines().find_map(|l| l.strip_prefix("#define ECOKV_ABI_VERSION "));
        line.map(|number| number.trim().to_owned()).ok_or("the header has no ECOKV_ABI_VERSION".to_owned())
    }

    /// The library of `ecokv_core.h`, which needs neither std nor libc.
    pub fn core_library(&self, to: &Path) -> Result<(), String> {
        let mut cargo = self.cargo("rustc");
        cargo.args(["--package", "ecokv-core-c", "--lib", "--crate-type", "staticlib", "--features", "freestanding"]);
        // Also where it is the host's: the profile has no unwinding, which build scripts need.
        run(cargo.args(["--profile", "bare", "--target", &self.triple]))?;
        let built = self.target_dir.join(&self.triple).join("bare/libecokv_core_c.a");
        let functions = functions(&self.header("core/include/ecokv_core.h")?);
        let object = self.extract(&built, &functions, to)?;
        let missing = output(self.tool("nm").arg("--undefined-only").arg("--just-symbols").arg(&object))?;
        let unexpected: Vec<&str> = missing.lines().map(str::trim).filter(|s| !GIVEN.contains(s)).collect();
        if !unexpected.is_empty() {
            return Err(format!("{} would need {}", to.display(), unexpected.join(", ")));
        }
        Ok(())
    }

    /// The libraries of `ecokv.h`, static and shared.
    pub fn libraries(&self, to: &Path) -> Result<(), String> {
        let mut cargo = self.cargo("build");
        cargo.args(["--package", "ecokv-c", "--profile", &self.profile]);
        if self.cross {
            cargo.args(["--target", &self.triple]);
        }
        run(&mut cargo)?;
        let mut built = self.target_dir.clone();
        if self.cross {
            built.push(&self.triple);
        }
        built.push(if self.profile == "dev" { "debug" } else { &self.profile });
        let mut all = functions(&self.header("core/include/ecokv_core.h")?);
        all.extend(functions(&self.header("include/ecokv.h")?));
        self.extract(&built.join("libecokv_c.a"), &all, &to.join("libecokv.a"))?;

        let shared = to.join(format!("libecokv.so.{}", self.abi()?));
        let mut strip = self.tool("objcopy");
        run(strip.arg("--strip-unneeded").arg(built.join("libecokv_c.so")).arg(&shared))?;
        let visible = output(self.tool("nm").args(["--dynamic", "--defined-only", "--just-symbols"]).arg(&shared))?;
        let visible: BTreeSet<String> = visible.lines().map(str::to_owned).collect();
        if visible != all {
            let odd: Vec<_> = visible.symmetric_difference(&all).cloned().collect();
            return Err(format!("{} and the headers differ in {}", shared.display(), odd.join(", ")));
        }
        let link = to.join("libecokv.so");
        let _ = std::fs::remove_file(&link); // there may be none
        let name = shared.file_name().ok_or("the library has a name")?;
        std::os::unix::fs::symlink(name, &link).map_err(|e| format!("{}: {e}", link.display()))
    }

    /// One object with `functions` and what they need, as the only one of an archive. Returns the object.
    fn extract(&self, archive: &Path, functions: &BTreeSet<String>, to: &Path) -> Result<PathBuf, String> {
        let folder = to.parent().ok_or("a library lies in a folder")?;
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let scratch = self.target_dir.join("package");
        std::fs::create_dir_all(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
        let name = to.file_stem().and_then(|n| n.to_str()).ok_or("the library has a name")?;
        let (linked, object) =
            (scratch.join("linked.o"), scratch.join(format!("{}.o", name.trim_start_matches("lib"))));
        let mut ld = self.tool("ld");
        // Nothing unwinds here, but a precompiled `core` may name the function that would decide how.
        ld.args(["-r", "--gc-sections", "--defsym=rust_eh_personality=0", "-o"]).arg(&linked);
        for function in functions {
            ld.args(["-u", function]);
        }
        run(ld.arg(archive))?;
        let mut objcopy = self.tool("objcopy");
        objcopy.args(["--strip-debug", "--wildcard", "--keep-global-symbol=ecokv_*"]);
        // Nothing unwinds here.
        objcopy.args(["--remove-section=.eh_frame", "--remove-section=.data.DW.ref.rust_eh_personality"]);
        // Bitcode from link-time optimisation.
        run(objcopy.args(["--remove-section=.llvmbc", "--remove-section=.llvmcmd"]).arg(&linked).arg(&object))?;
        let _ = std::fs::remove_file(to); // ar would add to it
        run(self.tool("ar").arg("crsD").arg(to).arg(&object))?;
        Ok(object)
    }

    fn header(&self, name: &str) -> Result<String, String> {
        let path = self.root.join("bindings-c").join(name);
        std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
    }

    fn cargo(&self, verb: &str) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args([verb, "--quiet", "--locked"]).current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target_dir);
        cargo
    }

    /// A program of GNU binutils for the target.
    fn tool(&self, name: &str) -> Command {
        let arch = self.triple.split('-').next().unwrap_or_default();
        let prefix = match arch {
            _ if !self.cross => "",
            "aarch64" if !cfg!(target_arch = "aarch64") => "aarch64-linux-gnu-",
            "x86_64" if !cfg!(target_arch = "x86_64") => "x86_64-linux-gnu-",
            thumb if thumb.starts_with("thumb") => "arm-none-eabi-",
            _ => "",
        };
        Command::new(format!("{prefix}{name}"))
    }
}

/// The version of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Names of the functions that a header declares.
fn functions(header: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in header.lines().filter(|line| !line.starts_with([' ', '/', '#']) && !line.starts_with("typedef")) {
        if let Some((before, _)) = line.split_once('(') {
            let name = before.rsplit([' ', '*']).next().unwrap_or_default();
            if name.starts_with("ecokv_") {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

pub fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{}: {status}", command.get_program().display())),
        Err(e) => Err(format!("{}: {e}", command.get_program().display())),
    }
}

fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|e| format!("{name}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("{name}: {e}"))
}

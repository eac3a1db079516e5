//! Struct layouts: asked of the C compiler for every field of every struct in a header, and of Rust.

use std::path::Path;
use std::process::Command;

/// Lines for a Rust struct: its size and alignment, then the offset and size of every field.
macro_rules! layout_of {
    ($ty:ident { $($field:ident),* $(,)? }) => {{
        let (size, align) = (size_of::<$ty>(), align_of::<$ty>());
        let mut lines = format!("{} {size} {align}\n", stringify!($ty));
        $({
            fn size_of_field<T>(_: fn($ty) -> T) -> usize { size_of::<T>() }
            let (at, size) = (std::mem::offset_of!($ty, $field), size_of_field(|s: $ty| s.$field));
            lines += &format!("  {} {at} {size}\n", stringify!($field));
        })*
        lines
    }};
}
pub(crate) use layout_of;

/// The same lines for every struct of a header, in its order.
pub fn header_layout(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(folder.join("include").join(name)).unwrap();
    let mut code = format!("#include <stdio.h>\n#include <stddef.h>\n#include \"{name}\"\nint main(void) {{\n");
    let mut current = None;
    for line in header.lines().map(str::trim) {
        if let Some(found) = line.strip_prefix("typedef struct ").and_then(|l| l.strip_suffix(" {")) {
            current = Some(found);
            code += &format!("printf(\"{found} %zu %zu\\n\", sizeof({found}), _Alignof({found}));\n");
        } else if line.starts_with('}') {
            current = None;
        } else if let (Some(s), true) = (current, !line.starts_with("//")) {
            let field = field_name(line);
            code +=
                &format!("printf(\"  {field} %zu %zu\\n\", offsetof({s}, {field}), sizeof((({s} *)0)->{field}));\n");
        }
    }
    code += "return 0;\n}\n";
    run(folder, &code)
}

/// `const float *keys;` -> `keys`; `char name[32];` -> `name`; `int (*on_token)(void *user);` -> `on_token`.
fn field_name(line: &str) -> &str {
    let declared = match line.split_once("(*") {
        Some((_, rest)) => rest.split(')').next(),
        None => line.trim_end_matches(';').split('[').next(),
    };
    declared.unwrap().rsplit([' ', '*']).next().unwrap()
}

fn run(folder: &Path, code: &str) -> String {
    let scratch = std::env::temp_dir().join(format!("ecokv-layout-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let (source, program) = (scratch.join("layout.c"), scratch.join("layout"));
    std::fs::write(&source, code).unwrap();
    let compiler = std::env::var("CC").unwrap_or("cc".into());
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    for include in ["include", "core/include"] {
        command.arg("-I").arg(folder.join(include));
    }
    assert!(command.arg(&source).arg("-o").arg(&program).status().unwrap().success());
    let output = Command::new(&program).output().unwrap();
    std::fs::remove_dir_all(&scratch).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

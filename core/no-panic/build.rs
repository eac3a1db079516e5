fn main() {
    // A shared library may leave symbols undefined unless told otherwise.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
    println!("cargo::rustc-cdylib-link-arg=-lc"); // memcpy and its kin
}

//! Bad GGUF files: every one must give one clear error in little time and memory, and nothing may panic.
//!
//! The hand-written cases re-create published attacks on GGUF readers (wrapping sizes, giant counts, zero dimensions,
//! absurd alignments, deep nesting, mistyped arrays). The random ones change a real file in place.

mod counting;
mod gguf_bytes;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use counting::{Cost, measured};
use ecokv::Error;
use ecokv::gguf::{GgufFile, Summary};
use gguf_bytes::{ARRAY, BOOL, F32, Gguf, STRING, U8, U32, U64, array, leak, string, u64s};

/// What a file of under a kilobyte may cost.
const SMALL: usize = 128 << 10;

#[test]
fn not_a_gguf_file() {
    refused("empty", vec![], &["the file is empty"]);
    refused("three bytes", b"GGU".to_vec(), &["not a GGUF file", "[47, 47, 55]"]);
    refused("zip", b"PK\x03\x04 and more than twenty-four bytes".to_vec(), &["not a GGUF file", "[50, 4b, 03, 04]"]);
    refused("magic only", b"GGUF".to_vec(), &["truncated: 4 bytes", "24"]);
    refused("23 bytes", Gguf::new().build()[..23].to_vec(), &["truncated: 23 bytes"]);
}

#[test]
fn versions_and_byte_order() {
    for version in [0, 1, 4, u32::MAX] {
        let file = Gguf::new().version(version.to_le_bytes()).build();
        refused("version", file, &[&format!("GGUF version {version},"), "2 and 3"]);
    }
    for version in [1u32, 2, 3] {
        refused("big-endian", Gguf::new().version(version.to_be_bytes()).build(), &["big-endian"]);
    }
}

#[test]
fn counts_that_the_file_cannot_hold() {
    for n in [1, 99_999] {
        refused("tensors", Gguf::new().n_tensors(n).build(), &[&format!("{n} tensors do not fit"), "24 bytes"]);
        refused("entries", Gguf::new().n_entries(n).build(), &[&format!("{n} metadata entries do not fit"), "24"]);
    }
    for n in [100_001, 1 << 32, 1 << 63, u64::MAX] {
        refused("tensors", Gguf::new().n_tensors(n).build(), &[&format!("{n} tensors, at most 100000")]);
        refused("entries", Gguf::new().n_entries(n).build(), &[&format!("{n} metadata entries, at most 100000")]);
    }
    // One too many, with room for it in what follows: a tensor is read as an entry, data as a tensor.
    refused(
        "entry count one too high",
        Gguf::new().entry("a", U8, [1]).n_entries(2).tensor("t", 0, &[1], 0).data(64).build(),
        &["tensor 1 of 1, \"\""],
    );
    refused(
        "tensor count one too high",
        Gguf::new().tensor("t", 0, &[1], 0).n_tensors(2).data(64).build(),
        &["tensor 2 of 2"],
    );
}

#[test]
fn metadata_keys() {
    let with_key = |length: u64, key: &[u8]| {
        Gguf::new().raw_entry(&[&length.to_le_bytes(), key, &U8.to_le_bytes(), &[1], &[0; 64]]).build()
    };
    refused("empty key", with_key(0, b""), &["metadata entry 1 of 1", "a key of 0 bytes"]);
    refused("empty key, 88 bytes", [&with_key(0, b"")[..], &[0; 88]].concat()[..88].to_vec(), &["entry 1 of 1"]);
    refused("key of 65536 bytes", with_key(65_536, b"k"), &["entry 1 of 1", "65536 bytes"]);
    refused("key of 2^64 - 1 bytes", with_key(u64::MAX, b"k"), &["entry 1 of 1", "18446744073709551615 bytes"]);
    refused("key beyond the file", with_key(1000, b"k"), &["whose name would have 1000 bytes", "the file ends"]);
    refused("key not UTF-8", with_key(2, b"\xff\xfe"), &["entry 1 of 1", "UTF-8"]);
    refused("key with a line break", with_key(3, b"a\nb"), &["entry 1 of 1, \"a\\nb\"", "control character"]);
    refused("twice", Gguf::new().entry("a", U8, [1]).entry("a", U8, [1]).build(), &["2 of 2, \"a\"", "twice"]);
}

#[test]
fn metadata_values() {
    let one = |ty: u32, value: &[u8]| Gguf::new().entry("some.key", ty, value).build();
    let named = "metadata entry 1 of 1, \"some.key\"";
    for ty in [13, 255, u32::MAX] {
        refused("unknown type", one(ty, &[0; 64]), &[named, &ty.to_string()]);
    }
    refused("boolean 2", one(BOOL, &[2]), &[named, "2"]);
    refused("string not UTF-8", one(STRING, &[&string("xy")[..8], &[0xc3, 0x28]].concat()), &[named, "UTF-8"]);
    refused("cut off", one(U64, &[0; 7]), &[named, "the file ends inside it (51 bytes)"]);
    for length in [33, 1 << 26, 1 << 30, 1 << 40, 1 << 63, u64::MAX] {
        let value = [&length.to_le_bytes()[..], &[b'x'; 32]].concat();
        refused("string length", one(STRING, &value), &[named]);
        for ty in [U8, U32, F32, BOOL, STRING, ARRAY] {
            refused("array length", one(ARRAY, &array(ty, length, &[0; 32])), &[named]);
        }
    }
    refused("array of an unknown type", one(ARRAY, &array(99, 1, &[0; 32])), &[named, "99"]);
    refused("array of arrays", one(ARRAY, &array(ARRAY, 1, &array(U8, 1, &[1]))), &[named, "arrays of arrays"]);
    refused("array with too large a number", one(ARRAY, &array(U64, 1, &[0xff; 8])), &[named, "does not fit"]);
    // 5000 levels, each an array of arrays.
    let nested: Vec<u8> = (0..5000).flat_map(|_| array(ARRAY, 1, &[])).collect();
    refused("deep nesting", one(ARRAY, &nested), &[named, "arrays of arrays"]);
    let too_long = one(ARRAY, &array(U8, (2 << 20) + 1, &[0; 32]));
    refused("array too long", too_long, &[named, "2097153 values, at most 2097152"]);
}

#[test]
fn alignment() {
    let with = |ty: u32, value: &[u8]| {
        Gguf::new().entry("general.alignment", ty, value).tensor("t", 0, &[1], 0).data(64).build()
    };
    for alignment in [0, 3, 24, 48, (1 << 20) + 8, 1 << 21, 1 << 30, 1 << 31, u32::MAX, u32::MAX - 7] {
        let parts = ["general.alignment", &alignment.to_string()];
        refused("alignment", with(U32, &alignment.to_le_bytes()), &parts);
    }
    refused("alignment as text", with(STRING, &string("32")), &["general.alignment"]);
    refused("alignment as u64", with(U64, &u64s(&[1 << 32])), &["general.alignment", "4294967296"]);
    // Allowed, but it moves the data behind the end of the file.
    refused(
        "data start behind the end",
        with(U32, &(1u32 << 20).to_le_bytes()),
        &["tensor \"t\"", "outside", "1048576"],
    );
}

#[test]
fn tensor_names_and_ranks() {
    let raw = |length: u64, name: &[u8], rank: u32| {
        let tail = [0u8; 96];
        Gguf::new().raw_tensor(&[&length.to_le_bytes(), name, &rank.to_le_bytes(), &tail]).data(64).build()
    };
    refused("empty name", raw(0, b"", 1), &["tensor 1 of 1, \"\"", "empty"]);
    refused("name of 65 bytes", raw(65, &[b'n'; 65], 1), &["tensor 1 of 1, \"nnn", "65"]);
    refused("name of 2^64 - 1 bytes", raw(u64::MAX, b"n", 1), &["would have 18446744073709551615 bytes"]);
    refused("name not UTF-8", raw(1, b"\xff", 1), &["tensor 1 of 1", "UTF-8"]);
    for rank in [0, 5, 9, u32::MAX] {
        refused("rank", raw(1, b"t", rank), &["tensor 1 of 1, \"t\"", &rank.to_string()]);
    }
    let twice = Gguf::new().tensor("same", 0, &[1], 0).tensor("same", 0, &[1], 32).data(64).build();
    refused("duplicate", twice, &["tensor \"same\"", "twice"]);
    // A description cut off by the end of the file.
    let whole = Gguf::new().tensor("t", 0, &[1], 0).entry("a", STRING, string(&"x".repeat(64))).build();
    refused("cut off", whole[..whole.len() - 1].to_vec(), &["tensor 1 of 1, \"t\"", "the file ends inside it"]);
}

#[test]
fn tensor_types() {
    for (ty, name) in [(9, "Q8_1"), (15, "Q8_K"), (16, "IQ2_XXS"), (26, "I32"), (28, "F64"), (39, "MXFP4")] {
        let file = Gguf::new().tensor("t", ty, &[256], 0).data(2048).build();
        refused(name, file, &["tensor \"t\"", &format!("type {ty} ({name}) is not supported")]);
    }
    for ty in [99, u32::MAX] {
        refused("unknown", Gguf::new().tensor("t", ty, &[256], 0).data(2048).build(), &["\"t\"", &ty.to_string()]);
    }
    // Q4_2, Q4_3 and the interleaved Q4_0 left the format long ago.
    for ty in [4, 5, 31] {
        refused("retired", Gguf::new().tensor("t", ty, &[256], 0).data(2048).build(), &["\"t\""]);
    }
}

#[test]
fn tensor_shapes() {
    let file = |ty: u32, dims: &[u64]| Gguf::new().tensor("t", ty, dims, 0).data(512).build();
    for at in 0..4 {
        let mut dims = [32; 4];
        dims[at] = 0;
        refused("zero dimension", file(8, &dims), &["tensor \"t\"", "zero"]);
    }
    // Products that wrap around to something small.
    let wrapping: [&[u64]; 7] = [
        &[1 << 32, 1 << 32],
        &[1 << 63, 2],
        &[(1 << 42) + 1, 1 << 22],
        &[1 << 16, 1 << 16, 1 << 16, 1 << 16],
        &[u64::MAX, u64::MAX],
        &[1 << 62, 1],
        &[u64::MAX - 31, 1],
    ];
    for dims in wrapping {
        for ty in [0, 1, 2, 12] {
            refused("wrapping product", file(ty, dims), &["\"t\""]);
        }
    }
    // Large, but nothing wraps.
    for dims in [&[1 << 20, 1 << 20][..], &[129], &[1 << 31, 4], &[1 << 40]] {
        refused("larger than the file", file(0, dims), &["tensor \"t\"", "outside the file"]);
    }
    for (ty, cols) in [(2, 33), (8, 31), (12, 255), (12, 32), (23, 128)] {
        refused("half a block", file(ty, &[cols, 1]), &["\"t\"", &cols.to_string()]);
    }
}

#[test]
fn tensor_offsets() {
    let file = |offset: u64| Gguf::new().tensor("t", 0, &[16], offset).data(128).build();
    assert!(GgufFile::from_static("last byte", leak(file(64))).is_ok());
    for offset in [1, 31, 33] {
        refused("misaligned", file(offset), &["tensor \"t\"", &format!("offset {offset} is not a multiple"), "32"]);
    }
    for offset in [96, 128, 1 << 20, 1 << 40, 1 << 63, u64::MAX - 31, u64::MAX - 63] {
        refused("outside", file(offset), &["tensor \"t\": 64 bytes", &offset.to_string(), "outside the file of"]);
    }
    let mut short = file(64);
    short.pop();
    refused("one byte short", short, &["tensor \"t\"", "outside the file"]);

    let overlap = Gguf::new().tensor("b", 0, &[8], 32).tensor("a", 0, &[16], 0).data(128).build();
    refused("overlap", overlap, &["tensors \"a\"", "\"b\"", "overlap"]);
    let same = Gguf::new().tensor("a", 0, &[8], 0).tensor("b", 0, &[8], 0).data(128).build();
    refused("same place", same, &["\"a\"", "\"b\"", "overlap"]);
}

#[test]
fn paths() {
    let missing = GgufFile::open(Path::new("/nonexistent/model.gguf")).unwrap_err();
    assert!(matches!(&missing, Error::Io { path, .. } if path == Path::new("/nonexistent/model.gguf")), "{missing:?}");
    assert!(missing.to_string().starts_with("/nonexistent/model.gguf: "), "{missing}");
    for (path, what) in [("/", "/: is a directory, not a GGUF file"), ("/dev/null", "/dev/null: is not a regular file")]
    {
        let err = GgufFile::open(Path::new(path)).unwrap_err();
        assert!(matches!(err, Error::Gguf { .. }), "{err:?}");
        assert_eq!(err.to_string(), what);
    }
    let dir = Scratch::new("paths");
    std::fs::write(dir.0.join("empty.gguf"), b"").unwrap();
    let err = GgufFile::open(&dir.0.join("empty.gguf")).unwrap_err();
    assert!(matches!(&err, Error::Gguf { what, .. } if what == "the file is empty"), "{err:?}");
}

/// Headers that really are as large as they say. The files are sparse.
#[test]
fn giant_headers() {
    let dir = Scratch::new("giant");
    let cases = [
        ("string", Gguf::new().entry("some.key", STRING, (80u64 << 20).to_le_bytes()), "some.key"),
        ("bytes", Gguf::new().entry("some.key", ARRAY, array(U8, 2 << 20, &[])).n_entries(2), "entry 2 of 2"),
        ("strings", Gguf::new().entry("some.key", ARRAY, array(STRING, 2 << 20, &[])).n_entries(2), "entry 2 of 2"),
        // One entry of 60 MiB is accepted, the second does not fit in the header's limit.
        ("two", Gguf::new().entry("some.key", STRING, (60u64 << 20).to_le_bytes()).n_entries(2), "entry 2 of 2"),
    ];
    for (name, start, says) in cases {
        let path = dir.0.join(name);
        std::fs::write(&path, start.build()).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(200 << 20).unwrap();
        let (result, cost) = measured(|| GgufFile::open(&path));
        let err = result.unwrap_err().to_string();
        assert!(err.contains(says), "{name}: {err}");
        // A growing buffer may hold its old and its new copy at once.
        assert!(cost.peak < 200 << 20, "{name}: {} bytes", cost.peak);
        assert!(cost.time < Duration::from_secs(20), "{name}: {:?}", cost.time);
    }
}

/// Every byte of a real header, changed in two ways, one at a time.
#[test]
fn every_header_byte_of_a_real_file() {
    let mut mutant = Mutant::new("every-byte", "llama/model-f32.gguf");
    for at in 0..mutant.header_bytes {
        let old = mutant.original[at];
        for new in [old ^ 0x80, old.wrapping_add(1)] {
            mutant.check(&[(at, new)]);
        }
    }
    mutant.report();
}

/// Several random bytes at once of a file with every block format, half of the rounds in the header.
#[test]
fn random_bytes_of_a_quantised_file() {
    let mut mutant = Mutant::new("random", "llama-mixedq/model.gguf");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..6000 {
        let range = if round % 2 == 0 { mutant.header_bytes } else { mutant.original.len() };
        let changes: Vec<(usize, u8)> =
            (0..1 + random.below(6)).map(|_| (random.below(range), random.below(256) as u8)).collect();
        mutant.check(&changes);
    }
    mutant.report();
}

/// A real file cut at every length of its header and at many lengths of its data.
#[test]
fn truncations_of_a_real_file() {
    let mutant = Mutant::new("truncated", "llama/model-f32.gguf");
    let mut length = mutant.original.len();
    while length > 0 {
        length -= if length > mutant.header_bytes + 64 { 509.min(length - mutant.header_bytes - 64) } else { 1 };
        mutant.file.set_len(length as u64).unwrap();
        let (result, cost) = measured(|| GgufFile::open(&mutant.path));
        let err = result.unwrap_err();
        assert!(matches!(err, Error::Gguf { .. }), "{length} bytes: {err:?}");
        assert!(!err.to_string().contains('\n'), "{length} bytes: {err}");
        assert!(cost.peak < Mutant::MAX_BYTES, "{length} bytes: {} bytes allocated", cost.peak);
    }
}

/// A copy of a real file that is changed in place, opened, and changed back.
struct Mutant {
    path: PathBuf,
    file: File,
    original: Vec<u8>,
    header_bytes: usize,
    accepted: usize,
    refused: usize,
    worst: Cost,
    _dir: Scratch,
}

impl Mutant {
    /// A changed length may turn the whole file into one string or one array of numbers, of 8 bytes each. The files have
    /// 0.8 MB.
    const MAX_BYTES: usize = 6 << 20;

    fn new(name: &str, source: &str) -> Self {
        let models = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/models"));
        let original = std::fs::read(models.join(source)).unwrap();
        let dir = Scratch::new(name);
        let path = dir.0.join("model.gguf");
        std::fs::write(&path, &original).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let n_data: usize = GgufFile::open(&path).unwrap().tensors().map(|t| t.n_bytes()).sum();
        let header_bytes = original.len() - n_data;
        Self { path, file, original, header_bytes, accepted: 0, refused: 0, worst: Cost::default(), _dir: dir }
    }

    fn check(&mut self, changes: &[(usize, u8)]) {
        for &(at, byte) in changes {
            self.file.write_all_at(&[byte], at as u64).unwrap();
        }
        let (result, cost) = measured(|| GgufFile::open(&self.path).map(|file| use_everything(&file)));
        match result {
            Ok(()) => self.accepted += 1,
            Err(err) => {
                assert!(matches!(err, Error::Gguf { .. }), "{changes:?}: {err:?}");
                assert!(!err.to_string().contains('\n'), "{changes:?}: {err}");
                self.refused += 1;
            }
        }
        assert!(cost.peak < Self::MAX_BYTES, "{changes:?}: {} bytes allocated", cost.peak);
        assert!(cost.time < Duration::from_secs(10), "{changes:?}: {:?}", cost.time);
        self.worst.peak = self.worst.peak.max(cost.peak);
        self.worst.time = self.worst.time.max(cost.time);
        for &(at, _) in changes {
            self.file.write_all_at(&self.original[at..=at], at as u64).unwrap();
        }
    }

    fn report(&self) {
        assert_eq!(std::fs::read(&self.path).unwrap(), self.original, "the changes were taken back");
        assert!(self.accepted > 100 && self.refused > 100, "{} accepted, {} refused", self.accepted, self.refused);
        println!(
            "{} accepted, {} refused, at most {} bytes and {:?}",
            self.accepted, self.refused, self.worst.peak, self.worst.time
        );
    }
}

/// Touches what an accepted file offers: every look-up form of every key, the ends of every tensor.
fn use_everything(file: &GgufFile) {
    let m = file.metadata();
    for (key, value) in m.iter() {
        assert!(!value.to_string().contains('\n'));
        let found = [
            m.str(key).is_ok(),
            m.u32(key).is_ok(),
            m.f32(key).is_ok(),
            m.bool(key).is_ok(),
            m.str_array(key).is_ok(),
            m.i32_array(key).is_ok(),
            m.f32_array(key).is_ok(),
        ];
        assert!(found.into_iter().filter(|ok| *ok).count() <= 1, "{key} has several types");
        let _ = m.u32_or_array(key, 3);
    }
    let summary = Summary::new(file);
    if let Err(err) = summary {
        assert!(matches!(err, Error::Metadata { .. }), "{err:?}");
    }
    for info in file.tensors() {
        let tensor = file.require(&info.name).unwrap();
        assert_eq!(tensor.data().len(), info.n_bytes());
        assert_eq!(tensor.row(0).len() * tensor.n_rows(), info.n_bytes());
        assert_eq!(tensor.row(tensor.n_rows() - 1).as_ptr_range().end, tensor.data().as_ptr_range().end);
        assert!(tensor.data().last().is_some());
    }
}

/// The file must give an [`Error::Gguf`] of one line with all these parts, cheaply.
#[track_caller]
fn refused(case: &str, bytes: Vec<u8>, parts: &[&str]) {
    let bytes = leak(bytes);
    let (result, cost) = measured(|| GgufFile::from_static("bad.gguf", bytes));
    let err = result.expect_err(case);
    assert!(matches!(err, Error::Gguf { .. }), "{case}: {err:?}");
    let text = err.to_string();
    assert!(text.starts_with("bad.gguf: ") && !text.contains('\n') && text.len() < 600, "{case}: {text}");
    for part in parts {
        assert!(text.contains(part), "{case}: {part:?} is not in {text:?}");
    }
    // Far more than the file's own size would be needed to notice a size taken on trust.
    assert!(cost.peak < SMALL + 4 * bytes.len(), "{case}: {} bytes allocated", cost.peak);
    assert!(cost.time < Duration::from_secs(5), "{case}: {:?}", cost.time);
}

/// A folder that disappears at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("ecokv-gguf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// xorshift64*: enough for picking bytes, the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize) % n
    }
}

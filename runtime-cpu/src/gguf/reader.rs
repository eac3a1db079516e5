//! Reads and checks a GGUF header.
//!
//! Entries are decoded one at a time, so that an error can name the entry it belongs to and the decoder's working
//! memory is released in between. No size found in the file is trusted: counts are compared with the bytes that are
//! left, and arrays and strings grow only as their bytes arrive.

use std::collections::{BTreeMap, HashSet};
use std::io::{Cursor, Read};

use gguf_rs_lib::GGUFError;
use gguf_rs_lib::format::{self, GGUFValueType, MetadataValue};

use super::metadata::Value;
use super::tensor::{TensorInfo, without_trailing_ones};
use crate::Error;
use crate::quant::GgmlType;

/// Longest header (everything before the tensor data). Vocabularies of 260,000 tokens take about 16 MiB.
const MAX_HEADER_BYTES: usize = 64 << 20;
/// Longest array.
const MAX_ARRAY_LENGTH: u64 = 2 << 20;
const MAX_KEY_BYTES: u64 = 65_535;
const MAX_ENTRIES: u64 = 100_000;
const MAX_TENSORS: u64 = 100_000;
const MAX_ALIGNMENT: u32 = 1 << 20;

/// Bytes before the first entry: magic, version, two counts.
const PREAMBLE_BYTES: usize = 24;
/// Smallest entry: key length, one byte of key, type, one byte of value.
const MIN_ENTRY_BYTES: usize = 8 + 1 + 4 + 1;
/// Smallest tensor description: name length, one byte of name, rank, one dimension, type, offset.
const MIN_TENSOR_BYTES: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// Reads the header of `bytes`, the whole file. `file` stands for it in errors.
pub(super) fn read_header(file: &str, bytes: &[u8]) -> Result<(BTreeMap<String, Value>, Vec<TensorInfo>), Error> {
    let mut reader =
        Reader { file, n_bytes: bytes.len(), cursor: Cursor::new(&bytes[..bytes.len().min(MAX_HEADER_BYTES)]) };
    let (n_tensors, n_entries) = reader.preamble()?;
    let entries = reader.entries(n_entries)?;
    let alignment = reader.alignment(&entries)?;
    let descriptions = reader.descriptions(n_tensors)?;
    let tensors = reader.place(descriptions, alignment)?;
    Ok((entries, tensors))
}

struct Reader<'a> {
    file: &'a str,
    n_bytes: usize,
    cursor: Cursor<&'a [u8]>,
}

impl Reader<'_> {
    /// Checks magic and version; returns the number of tensors and of metadata entries.
    fn preamble(&mut self) -> Result<(usize, usize), Error> {
        let head = *self.cursor.get_ref();
        if head.is_empty() {
            return Err(self.error("the file is empty".into()));
        }
        if !head.starts_with(b"GGUF") {
            return Err(self.error(format!("not a GGUF file: it begins with {:02x?}", &head[..head.len().min(4)])));
        }
        let Some(&[_, _, _, _, v0, v1, v2, v3, ref counts @ ..]) = head.first_chunk::<PREAMBLE_BYTES>() else {
            return Err(
                self.error(format!("truncated: {} bytes, a GGUF file has at least {PREAMBLE_BYTES}", head.len()))
            );
        };
        match u32::from_le_bytes([v0, v1, v2, v3]) {
            2 | 3 => {}
            version if (1..=3).contains(&version.swap_bytes()) => {
                return Err(self.error("a big-endian file, only little-endian ones are supported".into()));
            }
            version => return Err(self.error(format!("GGUF version {version}, versions 2 and 3 are supported"))),
        }
        self.cursor.set_position(PREAMBLE_BYTES as u64);
        let (counts, _) = counts.as_chunks::<8>();
        let n_tensors = u64::from_le_bytes(counts[0]);
        let n_entries = u64::from_le_bytes(counts[1]);
        let rest = self.rest();
        Ok((
            self.count("tensors", n_tensors, MAX_TENSORS, rest / MIN_TENSOR_BYTES)?,
            self.count("metadata entries", n_entries, MAX_ENTRIES, rest / MIN_ENTRY_BYTES)?,
        ))
    }

    /// Refuses a count that the file cannot hold.
    fn count(&self, what: &str, n: u64, max: u64, room: usize) -> Result<usize, Error> {
        if n > max {
            return Err(self.error(format!("{n} {what}, at most {max} are supported")));
        }
        match usize::try_from(n) {
            Ok(n) if n <= room => Ok(n),
            _ => Err(self.error(format!("{n} {what} do not fit in the {} bytes of the file", self.n_bytes))),
        }
    }

    fn entries(&mut self, n: usize) -> Result<BTreeMap<String, Value>, Error> {
        let mut entries = BTreeMap::new();
        for i in 0..n {
            let start = self.cursor.position();
            let added = self.entry().and_then(|(key, value)| match entries.insert(key, value) {
                None => Ok(()),
                Some(_) => Err("the key is there twice".to_owned()),
            });
            added.map_err(|what| {
                self.error(format!("metadata entry {} of {n}, {}: {what}", i + 1, self.name_at(start)))
            })?;
        }
        Ok(entries)
    }

    fn entry(&mut self) -> Result<(String, Value), String> {
        let key = self.key()?;
        let ty = u32::from_le_bytes(self.take()?);
        let ty = GGUFValueType::from_u32(ty).map_err(|_| format!("unknown value type {ty}"))?;
        if ty == GGUFValueType::Array {
            return Ok((key, self.array()?));
        }
        let value = MetadataValue::read_from(&mut self.cursor, ty).map_err(|e| self.describe(e))?;
        Ok((key, Value::try_from(value)?))
    }

    fn key(&mut self) -> Result<String, String> {
        let length = u64::from_le_bytes(self.take()?);
        if !(1..=MAX_KEY_BYTES).contains(&length) {
            return Err(format!("a key of {length} bytes, 1 to {MAX_KEY_BYTES} are possible"));
        }
        let key = std::str::from_utf8(self.bytes(length as usize)?).map_err(|_| "the key is not UTF-8")?;
        if key.contains(char::is_control) {
            return Err("the key has a control character".to_owned());
        }
        Ok(key.to_owned())
    }

    /// Arrays take half of the time to open a file, so they are read here: a vocabulary has 100,000 strings and more.
    fn array(&mut self) -> Result<Value, String> {
        use GGUFValueType as T;
        let element = u32::from_le_bytes(self.take()?);
        let length = u64::from_le_bytes(self.take()?);
        let element = T::from_u32(element).map_err(|_| format!("an array of the unknown value type {element}"))?;
        if length > MAX_ARRAY_LENGTH {
            return Err(format!("an array of {length} values, at most {MAX_ARRAY_LENGTH} are supported"));
        }
        let n = length as usize;
        let unfit = || format!("an array of {} with a value that does not fit", element.name());
        Ok(match element {
            T::Array => return Err("arrays of arrays are not supported".into()),
            T::String => Value::Strs(self.strings(n)?),
            T::Bool => {
                let bools = self.bytes(n)?.iter().map(|&b| (b < 2).then_some(b == 1)).collect::<Option<_>>();
                Value::Bools(bools.ok_or_else(unfit)?)
            }
            T::F32 => Value::Floats(self.numbers(n, |b| f32::from_le_bytes(b).into())?),
            T::F64 => Value::Floats(self.numbers(n, f64::from_le_bytes)?),
            T::U8 => Value::Ints(self.numbers(n, |b| u8::from_le_bytes(b).into())?),
            T::I8 => Value::Ints(self.numbers(n, |b| i8::from_le_bytes(b).into())?),
            T::U16 => Value::Ints(self.numbers(n, |b| u16::from_le_bytes(b).into())?),
            T::I16 => Value::Ints(self.numbers(n, |b| i16::from_le_bytes(b).into())?),
            T::U32 => Value::Ints(self.numbers(n, |b| u32::from_le_bytes(b).into())?),
            T::I32 => Value::Ints(self.numbers(n, |b| i32::from_le_bytes(b).into())?),
            T::I64 => Value::Ints(self.numbers(n, i64::from_le_bytes)?),
            T::U64 => {
                let ints = self.numbers(n, |b| i64::try_from(u64::from_le_bytes(b)).ok())?;
                Value::Ints(ints.into_iter().collect::<Option<_>>().ok_or_else(unfit)?)
            }
        })
    }

    fn strings(&mut self, n: usize) -> Result<Vec<String>, String> {
        let mut strings = Vec::with_capacity(n.min(self.rest() / 8));
        for _ in 0..n {
            let length = usize::try_from(u64::from_le_bytes(self.take()?)).map_err(|_| self.ends_inside())?;
            let text =
                std::str::from_utf8(self.bytes(length)?).map_err(|e| format!("a string that is not UTF-8: {e}"))?;
            strings.push(text.to_owned());
        }
        Ok(strings)
    }

    fn numbers<const N: usize, T>(&mut self, n: usize, read: impl Fn([u8; N]) -> T) -> Result<Vec<T>, String> {
        // At most 16 MiB.
        Ok(self.bytes(n * N)?.as_chunks().0.iter().map(|&b| read(b)).collect())
    }

    /// The next `n` bytes.
    fn bytes(&mut self, n: usize) -> Result<&[u8], String> {
        let start = self.cursor.position() as usize;
        let Some(end) = start.checked_add(n).filter(|&end| end <= self.cursor.get_ref().len()) else {
            return Err(self.ends_inside());
        };
        self.cursor.set_position(end as u64);
        Ok(&self.cursor.get_ref()[start..end])
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.cursor.read_exact(&mut bytes).map_err(|_| self.ends_inside())?;
        Ok(bytes)
    }

    fn alignment(&self, entries: &BTreeMap<String, Value>) -> Result<usize, Error> {
        let alignment = match entries.get("general.alignment") {
            None => 32,
            Some(Value::Int(i)) => *i,
            Some(other) => return Err(self.error(format!("general.alignment: {other} is not an integer"))),
        };
        match u32::try_from(alignment) {
            Ok(a) if a.is_power_of_two() && a <= MAX_ALIGNMENT => Ok(a as usize),
            _ => Err(self.error(format!("general.alignment: {alignment} is not a power of two up to {MAX_ALIGNMENT}"))),
        }
    }

    fn descriptions(&mut self, n: usize) -> Result<Vec<format::TensorInfo>, Error> {
        let mut descriptions: Vec<format::TensorInfo> = Vec::new();
        for i in 0..n {
            let start = self.cursor.position();
            let read = format::TensorInfo::read_from(&mut self.cursor);
            descriptions.push(read.map_err(|e| {
                let name = self.name_at(start);
                self.error(format!("tensor {} of {n}, {name}: {}", i + 1, self.describe(e)))
            })?);
        }
        let mut names = HashSet::new();
        if let Some(twice) = descriptions.iter().find(|d| !names.insert(d.name.as_str())) {
            return Err(self.error(format!("tensor {:?}: the name is there twice", twice.name)));
        }
        Ok(descriptions)
    }

    /// Turns offsets and shapes into ranges of the file. Call it when the cursor stands behind the last description.
    fn place(&self, descriptions: Vec<format::TensorInfo>, alignment: usize) -> Result<Vec<TensorInfo>, Error> {
        // Both terms are at most 64 MiB.
        let data_start = (self.cursor.position() as usize).next_multiple_of(alignment);
        let mut tensors = Vec::with_capacity(descriptions.len());
        for d in descriptions {
            let placed = place_one(&d, data_start, alignment, self.n_bytes);
            tensors.push(placed.map_err(|what| self.error(format!("tensor {:?}: {what}", d.name)))?);
        }
        let mut by_start: Vec<&TensorInfo> = tensors.iter().collect();
        by_start.sort_unstable_by_key(|t| t.range.start);
        for pair in by_start.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            if a.range.end > b.range.start {
                let what = format!(
                    "tensors {:?} (bytes {:?}) and {:?} (bytes {:?}) overlap",
                    a.name, a.range, b.name, b.range
                );
                return Err(self.error(what));
            }
        }
        Ok(tensors)
    }

    fn rest(&self) -> usize {
        self.cursor.get_ref().len() - self.cursor.position() as usize
    }

    /// The length-prefixed name at `start`, for messages about an entry that could not be decoded.
    fn name_at(&self, start: u64) -> String {
        let at = &self.cursor.get_ref()[start as usize..];
        let Some((length, name)) = at.split_first_chunk::<8>() else { return "whose name is cut off".into() };
        let length = u64::from_le_bytes(*length);
        match usize::try_from(length).ok().and_then(|l| name.get(..l)) {
            Some(name) if name.len() <= 128 => format!("{:?}", String::from_utf8_lossy(name)),
            _ => format!("whose name would have {length} bytes"),
        }
    }

    fn describe(&self, error: GGUFError) -> String {
        match error {
            GGUFError::Io(_) | GGUFError::UnexpectedEof => self.ends_inside(),
            GGUFError::InvalidTensorData(what) | GGUFError::InvalidMetadata(what) | GGUFError::Format(what) => {
                one_line(&what)
            }
            other => one_line(&other.to_string()),
        }
    }

    fn ends_inside(&self) -> String {
        if self.n_bytes > MAX_HEADER_BYTES {
            format!("the header is longer than {MAX_HEADER_BYTES} bytes")
        } else {
            format!("the file ends inside it ({} bytes)", self.n_bytes)
        }
    }

    fn error(&self, what: String) -> Error {
        Error::Gguf { file: self.file.to_owned(), what }
    }
}

fn place_one(
    d: &format::TensorInfo,
    data_start: usize,
    alignment: usize,
    n_bytes: usize,
) -> Result<TensorInfo, String> {
    let ty = GgmlType::from_id(d.tensor_type)
        .ok_or_else(|| format!("type {} ({}) is not supported", d.tensor_type, foreign_type_name(d.tensor_type)))?;
    if d.dimensions.contains(&0) {
        return Err(format!("shape {:?} has a zero", d.dimensions));
    }
    let size = || {
        let dims = d.dimensions.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<Vec<usize>>>()?;
        let row_bytes = ty.row_bytes(dims[0])?;
        let size = dims[1..].iter().try_fold(row_bytes, |size, &n| size.checked_mul(n))?;
        // A block may have fewer bytes than elements, so the element count is checked on its own.
        dims.iter().try_fold(1, |count: usize, &n| count.checked_mul(n))?;
        Some((dims, size))
    };
    let (dims, size) = size()
        .ok_or_else(|| format!("shape {:?} of {ty} (blocks of {}) has no valid size", d.dimensions, ty.block_len()))?;
    if !d.offset.is_multiple_of(alignment as u64) {
        return Err(format!("offset {} is not a multiple of the alignment {alignment}", d.offset));
    }
    let end = usize::try_from(d.offset)
        .ok()
        .and_then(|offset| data_start.checked_add(offset))
        .and_then(|start| Some((start, start.checked_add(size)?)));
    match end {
        Some((start, end)) if end <= n_bytes => {
            Ok(TensorInfo { name: d.name.clone(), ty, dims: without_trailing_ones(&dims).to_vec(), range: start..end })
        }
        _ => Err(format!(
            "{size} bytes at offset {} of the data, which begins at byte {data_start}, end outside the file of {n_bytes} bytes",
            d.offset
        )),
    }
}

fn foreign_type_name(id: u32) -> &'static str {
    format::GGUFTensorType::from_u32(id).map_or("unknown", format::GGUFTensorType::name)
}

impl TryFrom<MetadataValue> for Value {
    type Error = String;

    fn try_from(value: MetadataValue) -> Result<Self, String> {
        Ok(match value {
            MetadataValue::F32(x) => Value::F32(x),
            MetadataValue::F64(x) => Value::F64(x),
            MetadataValue::Bool(b) => Value::Bool(b),
            MetadataValue::String(s) => Value::Str(s),
            other => Value::Int(int(&other).ok_or("not a value")?),
        })
    }
}

fn int(value: &MetadataValue) -> Option<i128> {
    value.as_u64().map(i128::from).or_else(|| value.as_i64().map(i128::from))
}

/// Messages of the decoder may quote the file: keep them short and printable.
fn one_line(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

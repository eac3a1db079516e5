//! Typed look-ups in the header's key-value pairs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::Error;

/// The key-value pairs of a GGUF header.
///
/// Integers are accepted whatever their width in the file, as long as the value fits; so are floats of either width.
/// Any other type than the one asked for is an error, never a default.
#[derive(Debug)]
pub struct Metadata {
    file: Arc<str>,
    entries: BTreeMap<String, Value>,
}

/// A metadata value. Integers and floats have lost the width they had in the file, not their value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Any integer type.
    Int(i128),
    /// A 32-bit float.
    F32(f32),
    /// A 64-bit float.
    F64(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Str(String),
    /// An array of any integer type.
    Ints(Vec<i64>),
    /// An array of either float type.
    Floats(Vec<f64>),
    /// An array of booleans.
    Bools(Vec<bool>),
    /// An array of strings.
    Strs(Vec<String>),
}

impl Metadata {
    pub(super) fn new(file: Arc<str>, entries: BTreeMap<String, Value>) -> Self {
        Self { file, entries }
    }

    /// Every entry, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Whether the key is there, of whatever type.
    pub fn contains(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// A string.
    ///
    /// # Errors
    /// [`Error::Metadata`] if the key is missing or of another type; so for all look-ups below.
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        self.required(key, self.opt_str(key)?)
    }

    /// A string, if the key is there. Like all `opt_` look-ups it still refuses a value of another type.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, "a string", |v| match v {
            Value::Str(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// An integer of any width from 0 to `u32::MAX`.
    pub fn u32(&self, key: &str) -> Result<u32, Error> {
        self.required(key, self.opt_u32(key)?)
    }

    /// An integer of any width from 0 to `u32::MAX`, if the key is there.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.typed(key, "an integer from 0 to 4294967295", |v| match v {
            Value::Int(i) => u32::try_from(*i).ok(),
            _ => None,
        })
    }

    /// A float.
    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        self.required(key, self.opt_f32(key)?)
    }

    /// A float, if the key is there. A 64-bit one is rounded.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "a float", |v| match v {
            Value::F32(x) => Some(*x),
            Value::F64(x) => Some(*x as f32),
            _ => None,
        })
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<bool, Error> {
        self.required(key, self.opt_bool(key)?)
    }

    /// A boolean, if the key is there.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "a boolean", |v| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// An array of booleans, if the key is there.
    pub fn opt_bool_array(&self, key: &str) -> Result<Option<&[bool]>, Error> {
        self.typed(key, "an array of booleans", |v| match v {
            Value::Bools(b) => Some(b.as_slice()),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn str_array(&self, key: &str) -> Result<&[String], Error> {
        self.required(key, self.opt_str_array(key)?)
    }

    /// An array of strings, if the key is there.
    pub fn opt_str_array(&self, key: &str) -> Result<Option<&[String]>, Error> {
        self.typed(key, "an array of strings", |v| match v {
            Value::Strs(s) => Some(s.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of any width, each of which fits an i32.
    pub fn i32_array(&self, key: &str) -> Result<Vec<i32>, Error> {
        self.required(key, self.opt_i32_array(key)?)
    }

    /// An array of integers of any width, each of which fits an i32, if the key is there.
    pub fn opt_i32_array(&self, key: &str) -> Result<Option<Vec<i32>>, Error> {
        self.typed(key, "an array of 32-bit integers", |v| match v {
            Value::Ints(ints) => ints.iter().map(|&i| i32::try_from(i).ok()).collect(),
            _ => None,
        })
    }

    /// An array of floats.
    pub fn f32_array(&self, key: &str) -> Result<Vec<f32>, Error> {
        self.required(key, self.opt_f32_array(key)?)
    }

    /// An array of floats, if the key is there. 64-bit ones are rounded.
    pub fn opt_f32_array(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.typed(key, "an array of floats", |v| match v {
            Value::Floats(floats) => Some(floats.iter().map(|&x| x as f32).collect()),
            _ => None,
        })
    }

    /// `n` integers, one per layer, given as an array of that length or as one integer for all.
    ///
    /// `n` usually comes from the file too: more than [`MAX_LAYERS`] is refused.
    pub fn u32_or_array(&self, key: &str, n: usize) -> Result<Vec<u32>, Error> {
        self.required(key, self.opt_u32_or_array(key, n)?)
    }

    /// As [`u32_or_array`](Self::u32_or_array), if the key is there.
    pub fn opt_u32_or_array(&self, key: &str, n: usize) -> Result<Option<Vec<u32>>, Error> {
        if n > MAX_LAYERS {
            return Err(self.error(key, format!("{n} layers, at most {MAX_LAYERS} are supported")));
        }
        match self.entries.get(key) {
            Some(Value::Ints(ints)) if ints.len() != n => {
                Err(self.error(key, format!("an array of {} values for {n} layers", ints.len())))
            }
            _ => self.typed(key, "an integer from 0 to 4294967295 or an array of such", |v| match v {
                Value::Int(i) => u32::try_from(*i).ok().map(|i| vec![i; n]),
                Value::Ints(ints) => ints.iter().map(|&i| u32::try_from(i).ok()).collect(),
                _ => None,
            }),
        }
    }

    /// An error about this key.
    pub fn error(&self, key: &str, what: String) -> Error {
        Error::Metadata { file: self.file.to_string(), key: key.to_owned(), what }
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| self.error(key, "missing".to_owned()))
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.entries.get(key) else { return Ok(None) };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(self.error(key, format!("{value} is not {expected}"))),
        }
    }
}

/// Most layers [`Metadata::u32_or_array`] answers for.
pub const MAX_LAYERS: usize = 4096;

/// Scalars as they are, strings quoted, arrays by their length: always one short line.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(i) => write!(f, "{i}"),
            Value::F32(x) => write!(f, "{x:?}"),
            Value::F64(x) => write!(f, "{x:?}"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Str(s) => {
                let mut chars = s.chars();
                let head: String = chars.by_ref().take(60).collect();
                let more = if chars.next().is_some() { "..." } else { "" };
                write!(f, "{head:?}{more}")
            }
            Value::Ints(v) => write!(f, "[{} integers]", v.len()),
            Value::Floats(v) => write!(f, "[{} floats]", v.len()),
            Value::Bools(v) => write!(f, "[{} booleans]", v.len()),
            Value::Strs(v) => write!(f, "[{} strings]", v.len()),
        }
    }
}

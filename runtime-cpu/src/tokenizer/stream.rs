//! Bytes of a token stream to text.

/// Turns the bytes of single tokens into text that can be shown at once: a character that is spread over several tokens
/// is held back until it is complete, and bytes that can never become a character turn into U+FFFD.
///
/// ```
/// let mut stream = ecokv::tokenizer::Utf8Stream::default();
/// assert_eq!(stream.push(b"caf\xC3"), "caf");
/// assert_eq!(stream.push(b"\xA9"), "é");
/// assert_eq!(stream.push(b"\xE2\x82"), "");
/// assert_eq!(stream.finish(), "\u{FFFD}");
/// ```
#[derive(Debug, Default)]
pub struct Utf8Stream {
    /// The beginning of a character: at most three bytes between calls.
    pending: Vec<u8>,
    /// What the last call returned.
    text: String,
}

impl Utf8Stream {
    /// The text that `bytes` complete.
    pub fn push(&mut self, bytes: &[u8]) -> &str {
        self.text.clear();
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => error,
            };
            let (valid, after) = rest.split_at(error.valid_up_to());
            self.text.push_str(&String::from_utf8_lossy(valid));
            rest = after;
            let Some(invalid) = error.error_len() else { break };
            self.text.push(char::REPLACEMENT_CHARACTER);
            rest = &rest[invalid..];
        }
        let done = self.pending.len() - rest.len();
        self.pending.drain(..done);
        &self.text
    }

    /// Ends the text: an incomplete character becomes one U+FFFD. The stream can be used again afterwards.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }
}

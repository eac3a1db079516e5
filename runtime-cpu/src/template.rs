//! Chat messages to the prompt text a model was trained on.
//!
//! The template is the file's own (`tokenizer.chat_template`, Jinja) or, for files without one, a built-in one: see
//! [`Source`]. Rendering does what Hugging Face's `apply_chat_template` does, without tools or documents, and leaves
//! [`MEDIA_MARKER`] wherever an image belongs.

mod clock;
mod fallback;

pub use fallback::Source;

use crate::Error;
use crate::gguf::GgufFile;
use crate::tokenizer::Tokenizer;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use regex_automata::meta::Regex;
use std::collections::BTreeMap;

/// Stands for one image in a prompt. The text is cut there; whatever tokens the model wants around an image are not in
/// the prompt but added with the image.
pub const MEDIA_MARKER: &str = "<__media__>";

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Text and images in reading order.
    pub content: Vec<Part>,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text without [`MEDIA_MARKER`].
    Text(String),
    /// The next image.
    Image,
}

impl Message {
    /// A message of text only.
    pub fn text(role: &str, text: &str) -> Message {
        Message { role: role.into(), content: vec![Part::Text(text.into())] }
    }

    /// A message whose text may say with [`MEDIA_MARKER`] where its images go. The images keep their order; those for
    /// which there is no marker come first, in front of the text.
    ///
    /// **Errors**: more markers than images.
    pub fn with_images(role: &str, text: &str, n_images: usize) -> Result<Message, Error> {
        let pieces: Vec<&str> = text.split(MEDIA_MARKER).collect();
        let markers = pieces.len() - 1;
        let Some(unmarked) = n_images.checked_sub(markers) else {
            let what = format!("{markers} media markers in the {role} message, but {n_images} images for it");
            return Err(Error::Template { what });
        };
        let mut content = vec![Part::Image; unmarked];
        for (i, piece) in pieces.into_iter().enumerate() {
            if i > 0 {
                content.push(Part::Image);
            }
            if !piece.is_empty() {
                content.push(Part::Text(piece.into()));
            }
        }
        Ok(Message { role: role.into(), content })
    }

    fn n_images(&self) -> usize {
        self.content.iter().filter(|part| **part == Part::Image).count()
    }
}

/// The chat template of one model. Share it freely between threads.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: Source,
    bos: String,
    eos: String,
    /// Content may be a plain string.
    takes_strings: bool,
    images: Images,
}

/// What a template does with an image in a content list.
#[derive(Debug)]
enum Images {
    /// It writes this text for each.
    Placeholder(String),
    /// Nothing, or it cannot take lists: written for text only.
    Ignored,
    /// It writes this text, in which no placeholder can be made out.
    Unknown(String),
}

impl ChatTemplate {
    /// The template of a language-model file, or a built-in one.
    ///
    /// **Errors**: a template that does not compile or shows no user text, and a file without one for which no built-in
    /// template is known.
    pub fn from_gguf(file: &GgufFile, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
        let own = file.metadata().opt_str("tokenizer.chat_template")?.filter(|text| !text.trim().is_empty());
        let (source, text) = match own {
            Some(text) => (Source::File, without_training_marks(text)),
            None => {
                let name = file.metadata().opt_str("general.name")?.unwrap_or_default();
                fallback::choose(name, tokenizer)
                    .ok_or_else(|| failed(file, "the file has none, and no built-in one fits its vocabulary".into()))?
            }
        };
        let mut env = environment();
        env.add_template_owned(NAME, text).map_err(|e| failed(file, e.to_string()))?;
        let text_of = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default().to_owned();
        let mut template = ChatTemplate {
            env,
            source,
            bos: text_of(tokenizer.bos()),
            eos: text_of(tokenizer.eos()),
            takes_strings: true,
            images: Images::Ignored,
        };
        template.probe(tokenizer).map_err(|what| failed(file, what))?;
        Ok(template)
    }

    /// Where the template comes from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The prompt for `messages`, with [`MEDIA_MARKER`] once for every image, in order. `add_generation_prompt` opens
    /// the assistant's answer.
    ///
    /// The text may begin with the begin token, if the template writes it: see
    /// [`Tokenizer::needs_bos`](crate::tokenizer::Tokenizer::needs_bos).
    ///
    /// **Errors**: what the template refuses (most want user and assistant to take turns), a marker inside a text part,
    /// and templates that lose an image.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, Error> {
        let failed = |what: String| Error::Template { what };
        let values = messages.iter().map(|m| self.message_value(m)).collect::<Result<Vec<Value>, Error>>()?;
        let mut prompt = self.run(values, add_generation_prompt).map_err(failed)?;
        let n_images: usize = messages.iter().map(Message::n_images).sum();
        if let Images::Placeholder(placeholder) = &self.images {
            prompt = prompt.replace(placeholder, MEDIA_MARKER).replace(&masked(placeholder), placeholder);
        }
        let markers = prompt.matches(MEDIA_MARKER).count();
        if markers != n_images {
            return Err(failed(format!("{n_images} images given, but the template shows {markers}")));
        }
        Ok(prompt)
    }

    fn message_value(&self, message: &Message) -> Result<Value, Error> {
        let failed = |what: String| Err(Error::Template { what });
        let mut items = Vec::new();
        // The same without a list: markers in the text, and those in front of it on lines of their own, which is how
        // LLaVA was trained.
        let mut inline = String::new();
        let mut leading = true;
        for part in &message.content {
            match part {
                Part::Text(text) if text.contains(MEDIA_MARKER) => {
                    return failed(format!("the {} message holds {MEDIA_MARKER} as text", message.role));
                }
                Part::Text(text) => {
                    leading = false;
                    let text = match &self.images {
                        Images::Placeholder(placeholder) => text.replace(placeholder, &masked(placeholder)),
                        _ => text.clone(),
                    };
                    inline.push_str(&text);
                    items.push(text_item(&text));
                }
                Part::Image => {
                    inline.push_str(MEDIA_MARKER);
                    if leading {
                        inline.push('\n');
                    }
                    items.push(image_item());
                }
            }
        }
        let content = match (&self.images, message.n_images()) {
            (Images::Unknown(text), 1..) => {
                return failed(format!("it writes {text:?} for an image, in which no placeholder token is known"));
            }
            (Images::Placeholder(_), 1..) => Value::from(items),
            _ if self.takes_strings => Value::from(inline),
            _ => Value::from(vec![text_item(&inline)]),
        };
        Ok(message_value(&message.role, content))
    }

    fn run(&self, messages: Vec<Value>, add_generation_prompt: bool) -> Result<String, String> {
        let template = self.env.get_template(NAME).map_err(|e| e.to_string())?;
        let values = context! {
            messages,
            add_generation_prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            tools => (),
            documents => (),
        };
        template.render(values).map_err(|e| e.to_string())
    }

    /// Finds out by trial which content the template takes and what it writes for an image.
    fn probe(&mut self, tokenizer: &Tokenizer) -> Result<(), String> {
        let run = |content: Value| self.run(vec![message_value("user", content)], true);
        // A template that does not know lists fails or prints the list itself.
        let quoted = [format!("'{PROBE}'"), format!("\"{PROBE}\"")];
        let shown = |text: &str| text.contains(PROBE) && !quoted.iter().any(|quoted| text.contains(quoted));
        let string = run(Value::from(PROBE));
        let without = run(Value::from(vec![text_item(PROBE)])).ok().filter(|text| shown(text));
        let with = run(Value::from(vec![image_item(), text_item(PROBE)])).ok().filter(|text| shown(text));
        let takes_strings = string.as_ref().is_ok_and(|text| shown(text));
        if !takes_strings && without.is_none() {
            return Err(string.err().unwrap_or_else(|| "it does not show the user's text".into()));
        }
        self.images = match (without, with) {
            (Some(without), Some(with)) => match inserted(&without, &with) {
                "" => Images::Ignored,
                text => placeholder(text, tokenizer).map_or_else(|| Images::Unknown(text.into()), Images::Placeholder),
            },
            _ => Images::Ignored,
        };
        self.takes_strings = takes_strings;
        Ok(())
    }
}

/// As Hugging Face sets Jinja up, with a limit on time and memory: files are not trusted.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        env.set_syntax(syntax);
    }
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", |format: String| {
        clock::strftime_now(&format).map_err(|what| minijinja::Error::new(ErrorKind::InvalidOperation, what))
    });
    env
}

/// `{% generation %}` marks the assistant's words for training and renders as its body.
fn without_training_marks(template: &str) -> String {
    let marks = Regex::new(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}").expect("the expression is valid");
    let mut out = String::with_capacity(template.len());
    let mut at = 0;
    for found in marks.find_iter(template) {
        let tag = &template[found.range()];
        out.push_str(&template[at..found.start()]);
        let plain = if tag.contains("endgeneration") { ("endgeneration", "endif") } else { ("generation", "if true") };
        out.push_str(&tag.replace(plain.0, plain.1));
        at = found.end();
    }
    out.push_str(&template[at..]);
    out
}

/// What `with` has in the place where it differs from `without`.
fn inserted<'t>(without: &str, with: &'t str) -> &'t str {
    let front: usize = without.chars().zip(with.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    let back: usize = without[front..]
        .chars()
        .rev()
        .zip(with[front..].chars().rev())
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len_utf8())
        .sum();
    &with[front..with.len() - back]
}

/// The placeholder in what a template writes for one image: a known one, or else a special token with nothing but white
/// space around it.
fn placeholder(text: &str, tokenizer: &Tokenizer) -> Option<String> {
    let known = PLACEHOLDERS.into_iter().find(|placeholder| text.matches(placeholder).count() == 1);
    known.or_else(|| Some(text.trim()).filter(|token| tokenizer.find_special(token).is_some())).map(String::from)
}

/// A user's own `<image>` is not an image: while the placeholders are replaced it looks like this.
fn masked(placeholder: &str) -> String {
    placeholder.chars().flat_map(|c| [c, '\u{F8FE}']).collect()
}

fn message_value(role: &str, content: Value) -> Value {
    context! { role, content }
}

fn text_item(text: &str) -> Value {
    Value::from(BTreeMap::from([("type", Value::from("text")), ("text", Value::from(text))]))
}

fn image_item() -> Value {
    Value::from(BTreeMap::from([("type", "image")]))
}

fn failed(file: &GgufFile, what: String) -> Error {
    Error::Template { what: format!("{}: {what}", file.name()) }
}

const NAME: &str = "chat_template";
const PROBE: &str = "needle";

/// About 128 MB or two million steps for one rendering.
const FUEL: u64 = 2_000_000;

/// Longest first. Qwen2-VL's goes with the tokens around it, which are added with the image.
const PLACEHOLDERS: [&str; 3] = ["<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>", "<image>"];

//! A prompt of text and images becomes rows of the embedding space.

use crate::Error;
use crate::engine::Engine;
use crate::image::RgbImage;
use crate::model::{ImageCost, ImageEmbedding, ImagePart};
use crate::template::{MEDIA_MARKER, Message};
use crate::tokenizer::Tokenizer;

/// A prompt, tokenised and with its images encoded.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    pub(crate) chunks: Vec<Chunk>,
    image_costs: Vec<ImageCost>,
}

/// A part of a prompt.
#[derive(Clone, Debug)]
pub(crate) enum Chunk {
    Tokens(Vec<u32>),
    Image(ImageEmbedding),
}

impl Prompt {
    /// A single user turn under the model's chat template. A [`MEDIA_MARKER`] in `text` stands for the next image;
    /// images without a marker go in front of the text.
    ///
    /// # Errors
    /// [`Error::Prompt`] for images without a projector or markers without images, [`Error::Template`] if the template
    /// fails, [`Error::Image`] for an unusable image.
    pub fn chat(engine: &Engine, text: &str, images: &[RgbImage]) -> Result<Prompt, Error> {
        Prompt::messages(engine, &[Message::with_images("user", text, images.len())?], images)
    }

    /// A conversation under the model's chat template, up to where the assistant's next words begin. `images` are those of
    /// all messages, in order.
    ///
    /// # Errors
    /// As [`chat`](Self::chat).
    pub fn messages(engine: &Engine, messages: &[Message], images: &[RgbImage]) -> Result<Prompt, Error> {
        Prompt::rendered(engine, &engine.template()?.render(messages, true)?, images)
    }

    /// The text as it is, with the begin token if the file asks for one.
    ///
    /// # Errors
    /// As [`chat`](Self::chat).
    pub fn raw(engine: &Engine, text: &str, images: &[RgbImage]) -> Result<Prompt, Error> {
        Prompt::rendered(engine, &with_markers(text, images.len())?, images)
    }

    /// From token ids.
    ///
    /// # Errors
    /// [`Error::Prompt`] if an id is not below the model's vocabulary.
    pub fn tokens(engine: &Engine, ids: Vec<u32>) -> Result<Prompt, Error> {
        let n_vocab = engine.config().n_vocab;
        match ids.iter().find(|&&id| id as usize >= n_vocab) {
            Some(id) => Err(Error::Prompt { what: format!("token {id} is not below the vocabulary of {n_vocab}") }),
            None => Ok(Prompt { chunks: vec![Chunk::Tokens(ids)], image_costs: Vec::new() }),
        }
    }

    /// Positions that the prompt takes, images included.
    pub fn n_tokens(&self) -> usize {
        self.chunks.iter().map(Chunk::len).sum()
    }

    /// Positions that the images take.
    pub fn n_image_tokens(&self) -> usize {
        self.chunks.iter().filter(|c| matches!(c, Chunk::Image(_))).map(Chunk::len).sum()
    }

    /// What each image costs, in order.
    pub fn image_costs(&self) -> &[ImageCost] {
        &self.image_costs
    }

    /// Token ids in order, `None` for the rows of images.
    pub fn ids(&self) -> impl Iterator<Item = Option<u32>> {
        self.chunks.iter().flat_map(|chunk| match chunk {
            Chunk::Tokens(ids) => ids.iter().copied().map(Some).collect(),
            Chunk::Image(image) => vec![None; image.n_tokens],
        })
    }

    fn rendered(engine: &Engine, text: &str, images: &[RgbImage]) -> Result<Prompt, Error> {
        let pieces: Vec<&str> = text.split(MEDIA_MARKER).collect();
        if pieces.len() != images.len() + 1 {
            let what = format!("the chat template placed {} of {} images", pieces.len() - 1, images.len());
            return Err(Error::Prompt { what });
        }
        let vision = match &engine.vision {
            None if !images.is_empty() => {
                let what = format!("{} images, but no projector file (mmproj) was given", images.len());
                return Err(Error::Prompt { what });
            }
            vision => vision.as_ref(),
        };
        let tokenizer = &engine.tokenizer;
        let (mut chunks, mut image_costs) = (Vec::new(), Vec::new());
        if tokenizer.needs_bos(text) {
            chunks.push(Chunk::Tokens(tokenizer.bos().into_iter().collect()));
        }
        let mut text = String::new();
        for (i, piece) in pieces.iter().enumerate() {
            if let (Some(vision), Some(image)) = (vision, i.checked_sub(1).and_then(|i| images.get(i))) {
                image_costs.push(vision.cost(image.width(), image.height(), &engine.image_limits)?);
                for part in vision.encode(&engine.compute, image, &engine.image_limits)? {
                    match part {
                        ImagePart::Text(between) => text += &between,
                        ImagePart::Special(token) if tokenizer.find_special(&token).is_none() => {
                            let what = format!("the vocabulary has no token {token}, which belongs to the image");
                            return Err(Error::Prompt { what });
                        }
                        ImagePart::Special(token) => text += &token,
                        ImagePart::Rows(rows) => {
                            push_text(tokenizer, &mut chunks, &mut text);
                            chunks.push(Chunk::Image(rows));
                        }
                    }
                }
            }
            text += piece;
        }
        push_text(tokenizer, &mut chunks, &mut text);
        Ok(Prompt { chunks, image_costs })
    }
}

impl Chunk {
    pub(crate) fn len(&self) -> usize {
        match self {
            Chunk::Tokens(ids) => ids.len(),
            Chunk::Image(image) => image.n_tokens,
        }
    }
}

/// Tokenises the text gathered between two runs of image rows, in one piece: tokens may span markers.
fn push_text(tokenizer: &Tokenizer, chunks: &mut Vec<Chunk>, text: &mut String) {
    let ids = tokenizer.encode(text, false, true);
    if !ids.is_empty() {
        chunks.push(Chunk::Tokens(ids));
    }
    text.clear();
}

fn with_markers(text: &str, n_images: usize) -> Result<String, Error> {
    let markers = text.matches(MEDIA_MARKER).count();
    let Some(missing) = n_images.checked_sub(markers) else {
        let what = format!("{markers} {MEDIA_MARKER} markers but only {n_images} images");
        return Err(Error::Prompt { what });
    };
    Ok(MEDIA_MARKER.repeat(missing) + text)
}

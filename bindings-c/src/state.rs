//! What a session changes.

use std::sync::Arc;

use ecokv::tokenizer::Utf8Stream;
use ecokv::{Sampler, Session};
use ecokv_core_c as core;

use crate::call::Refusal;
use crate::engine::ecokv_engine_t;

/// A session with its sampler and text. The engine comes last: it is dropped after what borrows it.
pub(crate) struct State {
    pub session: Session<'static>,
    pub sampler: Sampler,
    /// After the last token that was run, `[n_vocab]`; empty before the first prompt and after going back.
    pub logits: Vec<f32>,
    /// A generated token that was not run yet.
    pub pending: Option<u32>,
    pub stream: Utf8Stream,
    pub n_past: usize,
    pub n_ctx: usize,
    pub engine: Arc<ecokv_engine_t>,
}

/// Handles may move between threads.
const _: fn() = || {
    fn movable<T: Send>() {}
    movable::<State>();
    fn shared<T: Send + Sync>() {}
    shared::<ecokv_engine_t>();
};

impl State {
    /// Runs the token that was generated last.
    pub fn settle(&mut self) -> Result<(), Refusal> {
        match self.pending.take() {
            Some(id) if self.n_past < self.n_ctx => self.decode(id),
            other => {
                self.pending = other;
                match other {
                    None => Ok(()),
                    Some(_) => {
                        Err(Refusal::new(core::ECOKV_CONTEXT_FULL, format!("the context of {} is full", self.n_ctx)))
                    }
                }
            }
        }
    }

    pub fn sample(&mut self) -> Result<u32, Refusal> {
        self.ready()?;
        Ok(self.sampler.next(&self.logits))
    }

    pub fn decode(&mut self, id: u32) -> Result<(), Refusal> {
        if self.n_past == 0 {
            return self.ready();
        }
        let logits = self.session.decode(id)?;
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.n_past += 1;
        Ok(())
    }

    pub fn ready(&self) -> Result<(), Refusal> {
        match self.logits.is_empty() {
            true => Err(Refusal::new(core::ECOKV_BAD_ORDER, "the session has no prompt yet, or went back")),
            false => Ok(()),
        }
    }

    pub fn rewind(&mut self, n_past: usize) -> Result<(), Refusal> {
        self.session.rewind(n_past)?;
        if n_past < self.n_past {
            self.logits.clear();
        }
        self.pending = None;
        self.stream = Utf8Stream::default();
        self.n_past = n_past;
        Ok(())
    }

    pub fn reset(&mut self) {
        self.session.reset();
        self.logits.clear();
        self.pending = None;
        self.stream = Utf8Stream::default();
        self.n_past = 0;
    }
}

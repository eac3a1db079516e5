//! Text and images: entries of one kind before the other, or each kind with a share of its own.

use crate::evict::Job;
use crate::select::{Cut, PROTECTED};
use crate::shape::Head;
use crate::tag;

/// Protects the text of a head if it fits, else puts the images behind it.
pub(crate) fn prefer_text(job: &Job<'_>, head: Head, count: usize, keys: &mut [u32]) {
    let image = |i: usize| is_image(job, head, i);
    let first = keys.iter().enumerate().filter(|&(i, &key)| key == PROTECTED || !image(i)).count();
    for (i, key) in keys.iter_mut().enumerate() {
        match image(i) {
            true if first > count && *key != PROTECTED => *key = 0,
            false if first <= count => *key = PROTECTED,
            _ => {}
        }
    }
}

/// Leaves as many images and as many others in the race as their shares allow: those are protected, the rest ranks last.
/// `images` is a share of the budget and scaled to `count`. Protected entries are in whatever the shares say.
pub(crate) fn divide(job: &Job<'_>, head: Head, count: usize, images: u32, keys: &mut [u32]) {
    let mut of_kind = [Kind::default(); 2];
    for (i, &key) in keys.iter().enumerate() {
        let kind = kind_mut(&mut of_kind, is_image(job, head, i));
        kind.entries = kind.entries.saturating_add(1);
        kind.protected = kind.protected.saturating_add(usize::from(key == PROTECTED));
    }
    let [text, image] = of_kind;
    let share = scaled(count, images, job.budget).min(image.entries).max(count.saturating_sub(text.entries));
    let share = share.max(image.protected).min(count.saturating_sub(text.protected));
    for (kind, n) in [(true, share), (false, count.saturating_sub(share))] {
        let of_kind = keys.iter().enumerate().filter(|&(i, _)| is_image(job, head, i) == kind).map(|(_, &key)| key);
        let mut cut = Cut::top(of_kind, n);
        for (_, key) in keys.iter_mut().enumerate().filter(|&(i, _)| is_image(job, head, i) == kind) {
            *key = if cut.take(*key) { PROTECTED } else { 0 };
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Kind {
    entries: usize,
    protected: usize,
}

fn kind_mut(kinds: &mut [Kind; 2], image: bool) -> &mut Kind {
    let [text, images] = kinds;
    if image { images } else { text }
}

/// `count * part / whole`, rounded.
fn scaled(count: usize, part: u32, whole: u32) -> usize {
    let whole = u64::from(whole.max(1));
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    let rounded = count.saturating_mul(u64::from(part)).saturating_add(whole >> 1).checked_div(whole).unwrap_or(0);
    usize::try_from(rounded).unwrap_or(usize::MAX)
}

fn is_image(job: &Job<'_>, head: Head, i: usize) -> bool {
    job.view.tagged(head.start.saturating_add(i), tag::IMAGE)
}

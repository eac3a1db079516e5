//! Eviction that tells text from images, on a prompt of LLaVA-NeXT: 97 entries, of which 70 are an image.

#[path = "../../examples/golden/mod.rs"]
mod golden;

use ecokv::{Engine, Eviction, LayerBudget, Modalities, Modality, Policy, Prompt, Session, SessionOptions, methods};
use ecokv_core::Reference;
use golden::{CASES, Case, Golden, options};

const N: u32 = 97;
const N_IMAGE: u32 = 70;
const N_TEXT: u32 = N - N_IMAGE;

/// Methods with every way to share the budget between heads.
const METHODS: [&str; 6] = ["ecokv", "snapkv", "adakv", "knorm", "streaming", "h2o"];

#[test]
fn protected_text_or_images_are_kept_whole() {
    let model = Model::open();
    for name in METHODS {
        for (kind, n, budget) in [(Modality::Text, N_TEXT, 40), (Modality::Image, N_IMAGE, 85)] {
            let modalities = Modalities { protect: Some(kind), ..Modalities::default() };
            let kept = model.kept(policy(name), budget, modalities).unwrap();
            for positions in &kept {
                let of_kind = positions.iter().filter(|&&p| model.is_image(p) == (kind == Modality::Image)).count();
                assert_eq!(of_kind, n as usize, "{name} {kind:?}: {positions:?}");
            }
            let total: usize = kept.iter().map(Vec::len).sum();
            assert_eq!(total, budget as usize * kept.len(), "{name} {kind:?}");
        }
    }
}

#[test]
fn a_budget_that_cannot_hold_what_is_protected_is_refused() {
    let model = Model::open();
    for (kind, n) in [(Modality::Text, N_TEXT), (Modality::Image, N_IMAGE)] {
        let modalities = Modalities { protect: Some(kind), ..Modalities::default() };
        let error = model.kept(policy("knorm"), n - 1, modalities).unwrap_err();
        assert!(error.contains(&n.to_string()) && error.contains(&(n - 1).to_string()), "{error}");
        assert!(model.kept(policy("knorm"), n, modalities).is_ok());
    }
    let modalities = Modalities { image_budget: Some(31), ..Modalities::default() };
    let error = model.kept(policy("knorm"), 30, modalities).unwrap_err();
    assert_eq!(error, "prompt: 31 entries for images of a budget of 30");
}

#[test]
fn images_and_text_have_budgets_of_their_own() {
    let model = Model::open();
    for name in ["ecokv", "snapkv", "knorm", "keydiff"] {
        for images in [5, 15, 20] {
            let modalities = Modalities { image_budget: Some(images), ..Modalities::default() };
            // The windows of 8 entries at the end are text.
            for positions in model.kept(policy(name), 30, modalities).unwrap() {
                let got = positions.iter().filter(|&&p| model.is_image(p)).count();
                assert_eq!((got, positions.len()), (images as usize, 30), "{name}: {positions:?}");
            }
        }
    }
    // More than there are: the image's 70 go to where the text leaves room.
    let modalities = Modalities { image_budget: Some(10), ..Modalities::default() };
    for positions in model.kept(policy("knorm"), 60, modalities).unwrap() {
        assert_eq!(positions.iter().filter(|&&p| !model.is_image(p)).count(), N_TEXT as usize);
        assert_eq!(positions.len(), 60);
    }
}

/// LOOK-M: where text fits it stays whole, where it does not no image entry does, but those of the recent half.
#[test]
fn look_m_evicts_images_before_text() {
    let model = Model::open();
    for name in methods::ALL.iter().map(|m| m.name).filter(|name| name.starts_with("look")) {
        for (budget, images) in [(40, 13), (27, 0), (20, 0)] {
            for positions in model.kept(method(name), budget, Modalities::default()).unwrap() {
                let got = positions.iter().filter(|&&p| model.is_image(p)).count();
                assert_eq!((got, positions.len()), (images, budget as usize), "{name} {budget}: {positions:?}");
            }
        }
    }
}

/// Several pictures between text, at positions of three numbers.
#[test]
fn spans_of_several_pictures_are_known_under_m_rope() {
    for case in CASES.iter().filter(|c| c.folder.starts_with("qwen2") && !c.pictures.is_empty()) {
        let model = Model::with_three_pictures(case);
        let n = model.images.len();
        let n_image = model.images.iter().filter(|i| **i).count();
        let n_text = n - n_image;
        for name in METHODS {
            for (kind, of_kind) in [(Modality::Text, n_text), (Modality::Image, n_image)] {
                let modalities = Modalities { protect: Some(kind), ..Modalities::default() };
                // Room for the window too.
                for positions in model.kept(policy(name), (of_kind + 10) as u32, modalities).unwrap() {
                    let got = positions.iter().filter(|&&p| model.is_image(p) == (kind == Modality::Image)).count();
                    assert_eq!(got, of_kind, "{} {name} {kind:?}: {positions:?}", case.family);
                }
            }
        }
        let modalities = Modalities { image_budget: Some(12), ..Modalities::default() };
        for positions in model.kept(policy("snapkv"), 30, modalities).unwrap() {
            let got = positions.iter().filter(|&&p| model.is_image(p)).count();
            assert_eq!((got, positions.len()), (12, 30), "{}: {positions:?}", case.family);
        }
        for budget in [n_text / 2, n_text, n_text + 7] {
            let recent = model.images[n - budget / 2..].iter().filter(|i| **i).count();
            for positions in model.kept(method("look-m"), budget as u32, Modalities::default()).unwrap() {
                let got = positions.iter().filter(|&&p| model.is_image(p)).count();
                let want = recent.max(budget.saturating_sub(n_text));
                assert_eq!((got, positions.len()), (want, budget), "{}: {positions:?}", case.family);
            }
        }
        let by_kind = policy("ecokv").with_reference(Reference::Modality).unwrap();
        let kept = |policy| model.kept(policy, 30, Modalities::default()).unwrap();
        assert_ne!(kept(by_kind), kept(policy("ecokv")), "{}", case.family);
    }
}

/// A centroid for each kind: the same as moving the image's keys by the distance of the two means, which no other axis
/// of the policy sees.
#[test]
fn a_centroid_of_each_kind_changes_the_choice() {
    let model = Model::open();
    let by_kind = policy("ecokv").with_reference(Reference::Modality).unwrap();
    let kept = |policy| model.kept(policy, 30, Modalities::default()).unwrap();
    assert_ne!(kept(by_kind), kept(policy("ecokv")));
    assert_eq!(kept(by_kind.with_reference(Reference::Mean).unwrap()), kept(policy("ecokv")));
    assert!(policy("snapkv").with_reference(Reference::Modality).is_none());
    // Cosine diversity has no centroid to move.
    assert!(policy("mixkv").with_reference(Reference::Modality).is_none());
}

struct Model {
    engine: Engine,
    prompt: Prompt,
    images: Vec<bool>,
}

impl Model {
    fn open() -> Model {
        let case: &Case = CASES.iter().find(|c| c.folder == "llavanext").unwrap();
        let engine = case.engine(2).unwrap();
        let prompt = case.recorded_prompt(&engine, &case.golden()).unwrap();
        let model = Model::new(engine, prompt);
        assert_eq!((model.images.len(), model.images.iter().filter(|i| **i).count()), (N as usize, N_IMAGE as usize));
        model
    }

    fn with_three_pictures(case: &Case) -> Model {
        let golden = Golden::load(&format!("models/{}/many.safetensors", case.folder));
        let pictures = [0, 1, 2].map(|i| golden.image(&format!("{i}.image")));
        let engine = case.engine(2).unwrap();
        let text = "<__media__>What is in the first image?<__media__> And here<__media__>\nis the total of the image";
        let prompt = Prompt::raw(&engine, text, &pictures).unwrap();
        Model::new(engine, prompt)
    }

    fn new(engine: Engine, prompt: Prompt) -> Model {
        let images = prompt.ids().map(|id| id.is_none()).collect();
        Model { engine, prompt, images }
    }

    fn is_image(&self, position: u32) -> bool {
        self.images[position as usize]
    }

    /// Positions that stay in each head of each layer.
    fn kept(&self, policy: Policy, budget: u32, modalities: Modalities) -> Result<Vec<Vec<u32>>, String> {
        let eviction = Some(Eviction { policy, layer_budget: LayerBudget::Uniform, budget });
        let mut session = Session::new(&self.engine, SessionOptions { eviction, ..options() }).unwrap();
        session.set_modalities(modalities).map_err(|e| e.to_string())?;
        session.prefill(&self.prompt).map_err(|e| e.to_string())?;
        let layers = session.cache().layers().iter();
        Ok(layers.flat_map(|l| (0..l.n_kv_heads()).map(|h| l.positions(h).to_vec())).collect())
    }
}

fn method(name: &str) -> Policy {
    methods::by_name(name).unwrap().policy
}

/// With a window of 8, where it has one.
fn policy(name: &str) -> Policy {
    let policy = method(name);
    if policy.needs().window_queries > 0 { policy.with_window(8) } else { policy }
}

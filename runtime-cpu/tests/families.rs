//! Every family against transformers in float32, and prompts in which text and pictures are mixed.

#[path = "../../examples/golden/mod.rs"]
mod golden;

use ecokv::cache::{Kept, KvCache, KvType, SlotRows};
use ecokv::gguf::GgufFile;
use ecokv::model::{Decoder, ImageLimits, Logits};
use ecokv::ops::Compute;
use ecokv::ops::rope::Position;
use ecokv::{Engine, EngineOptions, Prompt, Session};
use golden::{CASES, Case, Golden, options, relative, testdata};

/// Largest relative error of a language model.
const LM: f32 = 1e-5;
/// The same of a vision tower, and of a language model behind it.
const VISION: f32 = 1e-4;

#[test]
fn every_family_matches_transformers() {
    for case in &CASES {
        let errors = case.errors().unwrap();
        println!("{}: {errors:?}", case.family);
        let most = if case.pictures.is_empty() { LM } else { VISION };
        assert!(errors.embeddings < most, "{}: {errors:?}", case.family);
        assert!(errors.logits < most, "{}: {errors:?}", case.family);
        assert_eq!(errors.greedy, (8, 8), "{}", case.family);
    }
}

/// `docs/models.md` has a row for every recording. Its figures are of one machine: another may be at twice that.
#[test]
fn the_documentation_states_the_errors() {
    let docs = std::fs::read_to_string(testdata("../docs/models.md")).unwrap();
    let (_, table) = docs.split_once(golden::TITLES).expect("the table's head");
    let rows: Vec<&str> = table.lines().skip(1).take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), CASES.len(), "cargo run --release --example golden_table");
    for (case, stated) in CASES.iter().zip(rows) {
        let row = case.row(&case.errors().unwrap());
        for (cell, stated) in row.split('|').zip(stated.split('|')) {
            let (cell, stated) = (cell.trim(), stated.trim());
            match (cell.parse::<f32>(), stated.parse::<f32>()) {
                (Ok(error), Ok(stated)) => assert!(error <= 2.0 * stated, "{row}, stated {stated}"),
                _ => assert_eq!(cell, stated),
            }
        }
    }
}

/// Tokens around and between the squares of a picture, and how many rows stand where.
#[test]
fn prompts_are_laid_out_as_in_transformers() {
    for (folder, n_image) in [("llava15", 16), ("llavanext", 70)] {
        let (case, golden) = (case(folder), case(folder).golden());
        let prompt = case.recorded_prompt(&case.engine(1).unwrap(), &golden).unwrap();
        assert_eq!(prompt.n_image_tokens(), n_image, "{folder}");
        assert_eq!(
            layout(&prompt),
            recorded_layout(&golden, "input_ids", most_frequent(&golden, "input_ids")),
            "{folder}"
        );
    }
    let (case, golden) = (case("idefics3"), case("idefics3").golden());
    let engine = case.engine(1).unwrap();
    let image_token = engine.tokenizer().find_special("<image>").unwrap();
    for picture in case.pictures {
        let prompt = Prompt::raw(&engine, case.prompt.unwrap(), &[golden.image(&format!("{picture}image"))]).unwrap();
        assert_eq!(layout(&prompt), recorded_layout(&golden, &format!("{picture}input_ids"), image_token), "{picture}");
    }
}

/// Rows of the recording between the tokens of the text, in every order, through the bare decoder.
#[test]
fn text_and_pictures_mix_in_any_order() {
    for (case, pictures) in CASES.iter().filter(|c| !c.pictures.is_empty()).map(|c| (c, c.pictures)) {
        let (engine, golden) = (case.engine(2).unwrap(), case.golden());
        if engine.config().rope_sections.is_some() {
            continue; // Positions are no plain count: qwen_vl.rs.
        }
        let (first, last) = (&pictures[0], &pictures[pictures.len() - 1]);
        let image = |picture: &str| golden.image(&format!("{picture}image"));
        let embeds = |picture: &str| golden.get(&format!("{picture}image_embeds"));
        for (text, order) in [
            ("What<__media__><__media__>is", [first, last]),
            ("<__media__>in the<__media__>", [last, first]),
            ("<__media__><__media__>the image?", [last, last]),
        ] {
            let prompt = Prompt::raw(&engine, text, &order.map(|p| image(p))).unwrap();
            let recorded: Vec<f32> = order.iter().flat_map(|p| embeds(p).to_vec()).collect();
            let ids: Vec<_> = prompt.ids().collect();
            let got = Session::new(&engine, options()).unwrap().prefill_all_logits(&prompt).unwrap();
            let error = relative(&got, &decoder_logits(case, &ids, &recorded));
            assert!(error < VISION, "{}: {text}: {error}", case.family);
        }
    }
}

/// Squares of 32 pixels with 4 x 4 features; LLaVA-NeXT's resolutions are those of 1x2, 2x1, 2x2, 1x3 and 3x1 squares.
/// Counted by hand: an overview of 16, then for each line of features that shows the picture its columns and a newline.
#[test]
fn limits_choose_the_best_resolution_that_keeps_them() {
    let none = ImageLimits::default();
    let tokens = |n| ImageLimits { max_tokens: Some(n), ..none };
    let tiles = |n| ImageLimits { max_tiles: Some(n), ..none };
    let edge = |n| ImageLimits { longest_edge: Some(n), ..none };
    let next = case("llavanext").engine(1).unwrap();
    // A square picture fills 2x2 squares: 16 + 8 * (8 + 1). In 2x1 only its middle half is picture: 4 * (4 + 1).
    for (limits, want) in [
        (none, (88, 5, 64)),
        (tokens(88), (88, 5, 64)),
        (tokens(87), (36, 3, 64)),
        (tiles(5), (88, 5, 64)),
        (tiles(4), (36, 3, 64)),
        (edge(64), (88, 5, 64)),
        (edge(63), (17, 1, 32)),
        (tokens(35), (17, 1, 32)),
        (tiles(1), (17, 1, 32)),
        (tokens(17), (17, 1, 32)),
    ] {
        assert_eq!(cost(&next, (200, 200), &limits).unwrap(), want, "{limits:?}");
    }
    let text = cost(&next, (200, 100), &tokens(16)).unwrap_err();
    assert_eq!(
        text,
        "image: 200x100 pixels take at least 17 tokens, 1 tiles and a longest edge of 32; the limits are: tokens 16"
    );

    // Idefics3: 4 tokens to a square of 32 pixels, a longer side of 64 at most.
    let idefics = case("idefics3").engine(1).unwrap();
    for (limits, want) in [
        (none, (20, 5, 64)),
        (tokens(20), (20, 5, 64)),
        (tokens(19), (4, 1, 32)),
        (tiles(4), (4, 1, 32)),
        // Scaled to 63 pixels it would be stretched to 64 again.
        (edge(63), (4, 1, 32)),
        (edge(32), (4, 1, 32)),
        (tokens(4), (4, 1, 32)),
    ] {
        assert_eq!(cost(&idefics, (200, 200), &limits).unwrap(), want, "{limits:?}");
    }
    // A wide picture has two squares and an overview.
    assert_eq!(cost(&idefics, (200, 50), &none).unwrap(), (12, 3, 64));
    assert!(cost(&idefics, (200, 200), &tokens(3)).unwrap_err().contains("at least 4 tokens"));

    // LLaVA-1.5 has no choice.
    let llava = case("llava15").engine(1).unwrap();
    assert_eq!(cost(&llava, (200, 200), &tokens(16)).unwrap(), (16, 1, 32));
    assert!(cost(&llava, (200, 200), &tokens(15)).unwrap_err().contains("at least 16 tokens"));
}

/// What is announced is what is encoded.
#[test]
fn costs_are_those_of_the_prompt() {
    for case in CASES.iter().filter(|c| !c.pictures.is_empty()) {
        let golden = case.golden();
        for max_tokens in [None, Some(40), Some(17)] {
            let limits = ImageLimits { max_tokens, ..ImageLimits::default() };
            let engine = case.engine(1).unwrap().with_image_limits(limits);
            for picture in case.pictures {
                let image = golden.image(&format!("{picture}image"));
                let cost = engine.vision().unwrap().cost(image.width(), image.height(), &limits).unwrap();
                let prompt = Prompt::raw(&engine, "", &[image]).unwrap();
                assert_eq!(prompt.n_image_tokens(), cost.n_tokens, "{} {picture} {max_tokens:?}", case.family);
            }
        }
    }
}

#[test]
fn a_picture_longer_than_200_times_its_width_is_refused() {
    for case in CASES.iter().filter(|c| !c.pictures.is_empty()) {
        let engine = case.engine(1).unwrap();
        let limits = ImageLimits::default();
        for size in [(200, 1), (1, 200), (600, 3)] {
            cost(&engine, size, &limits).unwrap();
        }
        for (w, h) in [(201, 1), (1, 201), (601, 3), (u32::MAX, 1)] {
            let expected = format!("image: {w}x{h} pixels: one side is more than 200 times the other");
            assert_eq!(cost(&engine, (w, h), &limits).unwrap_err(), expected);
        }
    }
}

/// Sizes as a host may ask for them, without a picture in memory: no more than the largest of a reasonable picture.
#[test]
fn zero_and_enormous_pictures_are_refused_or_scaled() {
    for case in CASES.iter().filter(|c| !c.pictures.is_empty()) {
        let engine = case.engine(1).unwrap();
        let limits = ImageLimits::default();
        for (w, h) in [(0, 0), (0, 1), (64, 0)] {
            assert_eq!(cost(&engine, (w, h), &limits).unwrap_err(), format!("image: {w}x{h} pixels: a side is zero"));
        }
        let most = cost(&engine, (20_000, 20_000), &limits).unwrap();
        assert_eq!(cost(&engine, (u32::MAX, u32::MAX), &limits).unwrap(), most, "{}", case.family);
    }
}

#[test]
fn images_and_markers_must_match() {
    for case in CASES.iter().filter(|c| !c.pictures.is_empty()) {
        let (engine, golden) = (case.engine(1).unwrap(), case.golden());
        let image = golden.image(&format!("{}image", case.pictures[0]));
        let error = |text: &str, images: &[_]| Prompt::raw(&engine, text, images).unwrap_err().to_string();
        assert_eq!(error("<__media__>", &[]), "prompt: 1 <__media__> markers but only 0 images");
        let three = "<__media__> and <__media__><__media__>";
        assert_eq!(error(three, &[image.clone(), image.clone()]), "prompt: 3 <__media__> markers but only 2 images");
        // More images than markers: the others go in front.
        let (front, marked) = ("<__media__>", "<__media__>b");
        let both = Prompt::raw(&engine, marked, &[image.clone(), image.clone()]).unwrap();
        let spelled = Prompt::raw(&engine, &format!("{front}{marked}"), &[image.clone(), image]).unwrap();
        assert_eq!(layout(&both), layout(&spelled));
    }
}

/// LLaVA's vocabulary has none of the tokens that Idefics3 wants around its squares.
#[test]
fn a_projector_for_another_vocabulary_is_refused() {
    let (model, mmproj) = (testdata("models/llava15/model-f32.gguf"), testdata("models/idefics3/mmproj-f32.gguf"));
    let engine = Engine::open(&model, Some(&mmproj), EngineOptions::default()).unwrap();
    let image = case("idefics3").golden().image("a.image");
    let error = Prompt::raw(&engine, "", &[image]).unwrap_err().to_string();
    let token = "<fake_token_around_image>";
    assert_eq!(error, format!("prompt: the vocabulary has no token {token}, which belongs to the image"));
}

fn case(folder: &str) -> &'static Case {
    CASES.iter().find(|c| c.folder == folder).unwrap()
}

/// Tokens, squares and longer side.
fn cost(engine: &Engine, (w, h): (u32, u32), limits: &ImageLimits) -> Result<(usize, usize, u32), String> {
    let cost = engine.vision().unwrap().cost(w, h, limits).map_err(|e| e.to_string())?;
    Ok((cost.n_tokens, cost.n_tiles, cost.longest_edge))
}

fn layout(prompt: &Prompt) -> Vec<Option<u32>> {
    prompt.ids().collect()
}

fn recorded_layout(golden: &Golden, name: &str, image_token: u32) -> Vec<Option<u32>> {
    golden.ids(name).into_iter().map(|id| (id != image_token).then_some(id)).collect()
}

/// The placeholder of the recording: no other token is there so often.
fn most_frequent(golden: &Golden, name: &str) -> u32 {
    let ids = golden.ids(name);
    ids.iter().copied().max_by_key(|id| ids.iter().filter(|other| *other == id).count()).unwrap()
}

/// Logits after every token, where the images' positions get `rows` one after the other.
fn decoder_logits(case: &Case, ids: &[Option<u32>], rows: &[f32]) -> Vec<f32> {
    let file = GgufFile::open(&testdata(&format!("models/{}/model-f32.gguf", case.folder))).unwrap();
    let (decoder, cx) = (Decoder::load(&file).unwrap(), Compute::new(1).unwrap());
    let c = decoder.config();
    let mut rows = rows.chunks(c.n_embd);
    let mut x = vec![0.0; ids.len() * c.n_embd];
    for (id, x) in ids.iter().zip(x.chunks_mut(c.n_embd)) {
        match id {
            Some(id) => decoder.embed(&[*id], x),
            None => x.copy_from_slice(rows.next().unwrap()),
        }
    }
    assert!(rows.next().is_none());
    let positions: Vec<Position> = (0..ids.len() as u32).map(Position::text).collect();
    let mut cache = KvCache::new(c.n_layers, c.n_kv_heads, c.head_dim, KvType::F32);
    let keep_all = |s: ecokv::model::Staged<'_>| {
        let rows = &*s.rows;
        s.cache.fill(&cx, rows, |h| Kept::Range(0..rows.len(h) as u32), 0, &SlotRows::default());
        Ok(())
    };
    decoder.prefill(&cx, &mut x, &positions, &mut cache, Logits::All, keep_all).unwrap()
}

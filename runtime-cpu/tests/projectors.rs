//! Projector files of LLaVA-NeXT and Idefics3 that must be refused, by the name of what is wrong.

mod mmproj_file;

use ecokv::Error;
use ecokv::gguf::Value;
use ecokv::model::VisionTower;
use mmproj_file::Mmproj;

const N_EMBD_TEXT: usize = 64;

#[test]
fn bad_metadata_is_refused_by_key() {
    let max = i128::from(u32::MAX);
    let cases: &[(&str, &str, Value, &str)] = &[
        ("llavanext", "clip.vision.mm_patch_merge_type", Value::Str("flat".into()), "\"flat\" is not supported"),
        (
            "llavanext",
            "clip.vision.image_grid_pinpoints",
            Value::Ints(vec![-32, 32]),
            "-32x32, expected multiples of 32",
        ),
        ("llavanext", "clip.vision.image_grid_pinpoints", Value::Bool(true), "is not"),
        ("idefics3", "clip.projector_type", Value::Str("gemma3".into()), "\"gemma3\" is not supported"),
        ("idefics3", "clip.vision.projector.scale_factor", Value::Int(0), "0, expected at least 1"),
        ("idefics3", "clip.vision.projector.scale_factor", Value::Int(3), "3 does not divide the 4 patches"),
        ("idefics3", "clip.vision.projector.scale_factor", Value::Int(max), "4294967295 does not divide the 4 patches"),
        ("idefics3", "clip.vision.preproc_image_size", Value::Int(31), "31, expected 32 to 4096"),
        ("idefics3", "clip.vision.preproc_image_size", Value::Int(4097), "4097, expected 32 to 4096"),
        ("idefics3", "clip.vision.preproc_image_size", Value::Int(max), "4294967295, expected 32 to 4096"),
    ];
    for (folder, key, value, message) in cases {
        let mut file = Mmproj::of(folder);
        file.set(key, value.clone());
        let error = load(&file).unwrap_err();
        assert!(matches!(error, Error::Metadata { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(key) && error.contains(message), "{error}: expected {message}");
    }
    let mut file = Mmproj::of("idefics3");
    assert!(file.keys.remove("clip.vision.projector.scale_factor").is_some());
    let error = load(&file).unwrap_err().to_string();
    assert!(error.contains("clip.vision.projector.scale_factor") && error.contains("missing"), "{error}");
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    for folder in ["llavanext", "idefics3"] {
        let names: Vec<_> = Mmproj::of(folder).tensors.into_iter().map(|t| t.name).collect();
        for name in names.iter().filter(|n| !n.starts_with("v.blk.")) {
            let mut file = Mmproj::of(folder);
            file.remove_tensor(name);
            match name.as_str() {
                // Optional: without them it is another tower of the same kind.
                "v.pre_ln.weight" | "v.patch_embd.bias" => load(&file).unwrap(),
                "v.class_embd" => assert!(load(&file).unwrap_err().to_string().contains("v.position_embd.weight")),
                _ => assert!(load(&file).unwrap_err().to_string().contains(name.as_str()), "{folder} {name}"),
            }
            let mut file = Mmproj::of(folder);
            let tensor = file.tensor(name);
            let last = *tensor.dims.last().unwrap();
            tensor.cut_to(last - 1);
            let error = load(&file).expect_err(name);
            assert!(matches!(error, Error::Tensor { .. }), "{folder} {name}: {error}");
        }
    }
}

/// The older of the two names.
#[test]
fn either_name_of_the_newline_is_found() {
    let mut file = Mmproj::of("llavanext");
    file.tensor("model.image_newline").name = "v.image_newline".into();
    load(&file).unwrap();
}

#[test]
fn a_language_model_of_another_width_is_refused() {
    for (folder, tensor) in [("llavanext", "model.image_newline"), ("idefics3", "mm.model.fc.weight")] {
        let error = VisionTower::load(&Mmproj::of(folder).build(), 4096).err().unwrap().to_string();
        assert!(error.contains(tensor) && error.contains("4096"), "{error}");
    }
}

fn load(file: &Mmproj) -> Result<(), Error> {
    VisionTower::load(&file.build(), N_EMBD_TEXT).map(|_| ())
}

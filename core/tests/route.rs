//! Reading routes.

use ecokv_core::*;

const GOOD: &str = "ecokv-route 1\n# made for a test\nlayers 3\nheads 8\n\n0 streaming\n1 ecokv 96\n2   snapkv 160  \n";

fn parse(text: &str) -> Result<Vec<(&'static str, Option<u32>)>, RouteError> {
    let blank = RouteLayer { method: methods::by_name("full").unwrap(), budget: Some(7) };
    let mut out = [blank; 3];
    let result = parse_route(text, 8, &mut out);
    if result.is_err() {
        assert_eq!(out, [blank; 3], "written on an error");
    }
    result.map(|()| out.iter().map(|l| (l.method.name, l.budget)).collect())
}

#[test]
fn a_route() {
    assert_eq!(parse(GOOD), Ok(vec![("streaming", None), ("ecokv", Some(96)), ("snapkv", Some(160))]));
    assert_eq!(parse(&GOOD.replace('\n', "\r\n")), parse(GOOD));
}

#[test]
fn refusals_name_the_line() {
    use RouteErrorKind::*;
    let refused = |from: &str, to: &str| parse(&GOOD.replace(from, to)).map_err(|e| (e.line, e.kind)).unwrap_err();
    assert_eq!(parse("").map_err(|e| e.kind), Err(Version));
    assert_eq!(refused("route 1", "route 2"), (1, Version));
    assert_eq!(refused("layers 3", "layers 4"), (3, OtherModel { need: 3, got: 4 }));
    assert_eq!(refused("heads 8", "heads 2"), (4, OtherModel { need: 8, got: 2 }));
    assert_eq!(refused("heads 8", "heads eight"), (4, Form));
    assert_eq!(refused("layers 3\n", ""), (3, Form));
    assert_eq!(refused("1 ecokv 96\n", ""), (7, Order));
    assert_eq!(refused("2   snapkv 160  \n", ""), (8, Order));
    assert_eq!(refused("2   snapkv", "1 snapkv"), (8, Order));
    assert_eq!(refused("160  \n", "160\n3 snapkv\n"), (9, Order));
    assert_eq!(refused("ecokv 96", "ecokw 96"), (7, UnknownMethod));
    assert_eq!(refused("ecokv 96", "ecokv 0"), (7, Budget));
    assert_eq!(refused("ecokv 96", "ecokv -1"), (7, Form));
    assert_eq!(refused("ecokv 96", "ecokv 96 9"), (7, Form));
    assert_eq!(refused("ecokv 96", ""), (7, Form));
    assert_eq!(
        parse(&GOOD.replace("route 1", "route 2")).unwrap_err().to_string(),
        "route, line 1: not an \"ecokv-route 1\""
    );
}

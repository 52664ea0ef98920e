use super::*;
use proptest::prelude::*;
use serde_json::json;

fn read(text: &str) -> Result<Value, Refusal> {
    parse_strict(text.as_bytes(), Limits::DEFAULT)
}

fn canonical(text: &str) -> String {
    String::from_utf8(to_canonical(&read(text).unwrap())).unwrap()
}

/// RFC 8785, section 3.2.2 and 3.2.3.
#[test]
fn writes_the_examples_of_the_standard() {
    let given = r#"{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"#;
    let want = r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#;
    assert_eq!(canonical(given), want);
    let given = r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh",
      "1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control",
      "\u00f6":"Latin Small Letter O With Diaeresis"}"#;
    let order: Vec<usize> = ["Carriage", "One", "Control", "Latin", "Euro", "Emoji", "Hebrew"]
        .iter()
        .map(|word| canonical(given).find(word).unwrap())
        .collect();
    assert!(order.is_sorted(), "{order:?}");
}

/// RFC 8785, appendix B.
#[test]
fn prints_numbers_as_the_standard_says() {
    for (bits, want) in [
        (0x0000_0000_0000_0000, "0"),
        (0x8000_0000_0000_0000, "0"),
        (0x0000_0000_0000_0001, "5e-324"),
        (0x8000_0000_0000_0001, "-5e-324"),
        (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
        (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
        (0x4340_0000_0000_0000, "9007199254740992"),
        (0xc340_0000_0000_0000, "-9007199254740992"),
        (0x4430_0000_0000_0000, "295147905179352830000"),
        (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
        (0x44b5_2d02_c7e1_4af6, "1e+23"),
        (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
        (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
        (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
        (0x444b_1ae4_d6e2_ef50, "1e+21"),
        (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
        (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
        (0x41b3_de43_5555_5553, "333333333.3333332"),
        (0x41b3_de43_5555_5554, "333333333.33333325"),
        (0x41b3_de43_5555_5555, "333333333.3333333"),
        (0x41b3_de43_5555_5556, "333333333.3333334"),
        (0x41b3_de43_5555_5557, "333333333.33333343"),
        (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
        (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
    ] {
        let number = Value::Number(Number::from_f64(f64::from_bits(bits)).unwrap());
        assert_eq!(
            String::from_utf8(to_canonical(&number)).unwrap(),
            want,
            "{bits:x}"
        );
    }
}

#[test]
fn equal_values_spelt_otherwise_are_one_value() {
    for (a, b) in [
        ("1", "1.0"),
        ("1", "10e-1"),
        ("-0", "0"),
        ("0.1", "1e-1"),
        ("\"a\"", "\"\\u0061\""),
        ("{\"a\":1,\"b\":[2]}", " { \"b\" : [ 2.0 ] , \"a\" : 1e0 } "),
        ("9007199254740991", "9007199254740991.0"),
    ] {
        assert_eq!(read(a).unwrap(), read(b).unwrap(), "{a} {b}");
    }
    assert_eq!(read("1.0").unwrap(), json!(1));
    // Not normalised: two spellings of one character are two texts, as RFC 8785 says.
    assert_ne!(canonical("\"\u{e9}\""), canonical("\"e\u{301}\""));
}

#[test]
fn what_is_ambiguous_is_refused_with_its_place() {
    for (text, reason, place) in [
        (r#"{"a":1,"a":1}"#, "duplicate_key", "/a"),
        (r#"{"a":1,"\u0061":2}"#, "duplicate_key", "/a"),
        (r#"{"x":[0,{"k/~":1,"k/~":2}]}"#, "duplicate_key", "/x/1/k~1~0"),
        (r#"{"a":NaN}"#, "not_json", "/a"),
        ("[Infinity]", "not_json", "/0"),
        ("-Infinity", "not_json", "/"),
        (r#"["\ud800"]"#, "lone_surrogate", "/0"),
        (r#"["\udc00"]"#, "lone_surrogate", "/0"),
        (r#"["\ud800\ud800"]"#, "lone_surrogate", "/0"),
        (r#"["\ud800x"]"#, "lone_surrogate", "/0"),
        (r#"{"\ud800":1}"#, "lone_surrogate", "/"),
        ("[9007199254740992]", "number_range", "/0"),
        ("-9007199254740992", "number_range", "/"),
        ("9007199254740993.0", "number_range", "/"),
        ("1e20", "number_range", "/"),
        ("1000000000000000000000000000000", "number_range", "/"),
        ("1e400", "number_range", "/"),
        ("1 2", "trailing_bytes", "/"),
        ("{} x", "trailing_bytes", "/"),
        ("{}\0", "trailing_bytes", "/"),
        ("", "not_json", "/"),
        ("01", "not_json", "/"),
        ("+1", "not_json", "/"),
        ("1.", "not_json", "/"),
        (".5", "not_json", "/"),
        ("1e", "not_json", "/"),
        ("[1,]", "not_json", "/1"),
        ("{\"a\":1,}", "not_json", "/"),
        ("{a:1}", "not_json", "/"),
        ("'a'", "not_json", "/"),
        ("\"a\nb\"", "not_json", "/"),
        ("\"\\x\"", "not_json", "/"),
        ("\"\\u12", "not_json", "/"),
        ("\"\\u+123\"", "not_json", "/"),
        ("\"a", "not_json", "/"),
        ("\u{feff}{}", "not_json", "/"),
        ("nul", "not_json", "/"),
    ] {
        let refusal = read(text).expect_err(text);
        assert_eq!(refusal.code, Code::BadInput, "{text}");
        assert_eq!(refusal.reason.as_deref(), Some(reason), "{text}: {refusal}");
        assert_eq!(refusal.names, [place], "{text}");
    }
    for bytes in [
        &b"\"\xff\""[..],
        b"\"\xed\xa0\x80\"",
        b"\"\xc0\x80\"",
        b"{\"\xff\":1}",
    ] {
        let refusal = parse_strict(bytes, Limits::DEFAULT).unwrap_err();
        assert_eq!(refusal.reason.as_deref(), Some("invalid_utf8"));
    }
}

#[test]
fn the_limits_hold() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(read(&nested(64)).is_ok());
    assert_eq!(read(&nested(65)).unwrap_err().reason.as_deref(), Some("too_deep"));
    assert_eq!(
        read(&"[".repeat(1 << 20)).unwrap_err().reason.as_deref(),
        Some("too_deep")
    );
    // Siblings do not add up.
    assert!(read(&format!("[{}1]", "[[]],".repeat(100))).is_ok());
    let small = Limits { bytes: 3, depth: 64 };
    assert_eq!(parse_strict(b"[12]", small).unwrap_err().code, Code::TooLarge);
    assert!(parse_strict(b"[1]", small).is_ok());
}

#[test]
fn an_empty_request_is_recognised_in_every_form() {
    for text in [
        "",
        " ",
        "\n",
        "{}",
        " {\n} ",
        "[]",
        "[ ]",
        "null",
        " null\r\n",
        "\"\"",
        "\"  \"",
        "\u{feff}{}",
        "\t",
    ] {
        assert!(is_empty_request(text.as_bytes()), "{text:?}");
    }
    for text in [
        "{\"a\":1}",
        "[0]",
        "0",
        "false",
        "\"a\"",
        "n ull",
        "{}{}",
        "[{}]",
        "nulll",
    ] {
        assert!(!is_empty_request(text.as_bytes()), "{text:?}");
    }
}

fn value() -> impl Strategy<Value = Value> {
    let safe = -9_007_199_254_740_991_i64..=9_007_199_254_740_991;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        safe.prop_map(Value::from),
        any::<f64>().prop_filter_map("readable alike", |d| {
            Number::from_f64(d)
                .and_then(|n| read(std::str::from_utf8(&to_canonical(&Value::Number(n))).unwrap()).ok())
        }),
        ".*".prop_map(Value::String),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            proptest::collection::vec((".{0,3}", inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Spells a value at length, with its members in the order given by `turn`.
fn spell(value: &Value, turn: usize) -> String {
    match value {
        Value::Object(members) => {
            let mut parts: Vec<String> = members
                .iter()
                .map(|(k, v)| format!(" {} :\t{}", serde_json::to_string(k).unwrap(), spell(v, turn + 1)))
                .collect();
            if !parts.is_empty() {
                let by = turn % parts.len();
                parts.rotate_left(by);
            }
            format!("{{{}\n}}", parts.join(","))
        }
        Value::Array(items) => {
            let parts: Vec<String> = items.iter().map(|v| spell(v, turn + 1)).collect();
            format!("[ {} ]", parts.join(" , "))
        }
        other => other.to_string(),
    }
}

proptest! {
    #[test]
    fn the_canonical_form_is_a_fixpoint(value in value()) {
        let once = to_canonical(&value);
        let back = parse_strict(&once, Limits::DEFAULT).unwrap();
        prop_assert_eq!(&to_canonical(&back), &once);
        prop_assert_eq!(back, value);
    }

    #[test]
    fn order_and_space_change_nothing(value in value(), turn in 0_usize..7) {
        let spelt = spell(&value, turn);
        let back = parse_strict(spelt.as_bytes(), Limits::DEFAULT).unwrap();
        prop_assert_eq!(to_canonical(&back), to_canonical(&value));
    }

    #[test]
    fn no_bytes_break_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        if let Ok(value) = parse_strict(&bytes, Limits::DEFAULT) {
            let lenient: Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert_eq!(to_canonical(&value), to_canonical(&lenient));
        }
    }

    #[test]
    fn no_jsonish_text_breaks_the_reader(text in r#"[\[\]{}:,"\\u0-9a-fd.eE+ -]{0,24}"#) {
        if let Ok(value) = read(&text) {
            prop_assert_eq!(read(&String::from_utf8(to_canonical(&value)).unwrap()).unwrap(), value);
        }
    }
}

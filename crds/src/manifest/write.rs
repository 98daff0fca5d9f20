//! YAML output in block style. Strings are quoted whenever any YAML reader might take them for something else; kubectl
//! reads `yes` as a boolean, and an annotation that is no string is refused.

use serde_json::Value;

use super::read::{boolean, is_null};

/// Writes one document, without `---`, ending in a newline.
pub fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => write_members(value, 0, &mut out),
        Value::Array(list) if !list.is_empty() => write_elements(value, 0, &mut out),
        other => {
            write_scalar(other, &mut out);
            out.push('\n');
        }
    }
    out
}

fn indent(depth: usize, out: &mut String) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

fn write_members(value: &Value, depth: usize, out: &mut String) {
    for (i, (key, value)) in value.as_object().into_iter().flatten().enumerate() {
        if i > 0 {
            indent(depth, out);
        }
        write_string(key, out);
        out.push(':');
        match value {
            Value::Object(map) if !map.is_empty() => {
                out.push('\n');
                indent(depth + 1, out);
                write_members(value, depth + 1, out);
            }
            Value::Array(list) if !list.is_empty() => {
                out.push('\n');
                indent(depth, out);
                write_elements(value, depth, out);
            }
            other => {
                out.push(' ');
                write_scalar(other, out);
                out.push('\n');
            }
        }
    }
}

fn write_elements(value: &Value, depth: usize, out: &mut String) {
    for (i, element) in value.as_array().into_iter().flatten().enumerate() {
        if i > 0 {
            indent(depth, out);
        }
        out.push_str("- ");
        match element {
            Value::Object(map) if !map.is_empty() => write_members(element, depth + 1, out),
            Value::Array(list) if !list.is_empty() => write_elements(element, depth + 1, out),
            other => {
                write_scalar(other, out);
                out.push('\n');
            }
        }
    }
}

fn write_scalar(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => write_string(text, out),
        // Empty lists and mappings are the same in JSON.
        other => out.push_str(&other.to_string()),
    }
}

/// A string that is safe without quotes begins with a letter or a slash and holds nothing that YAML uses.
fn is_plain(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '+'))
        && !is_null(text)
        && boolean(text).is_none()
}

fn write_string(text: &str, out: &mut String) {
    if is_plain(text) {
        out.push_str(text);
    } else if !text.contains('\'') && text.chars().all(|c| (' '..='~').contains(&c)) {
        out.push('\'');
        out.push_str(text);
        out.push('\'');
    } else {
        // A JSON string is a double-quoted YAML string, but for two line breaks that JSON allows bare.
        let quoted = Value::from(text).to_string();
        out.push_str(
            &quoted
                .replace('\u{85}', "\\u0085")
                .replace('\u{2028}', "\\u2028")
                .replace('\u{2029}', "\\u2029"),
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::{Format, read, read_yaml};
    use super::*;

    fn back(value: &Value) -> Value {
        let text = to_yaml(value);
        let mut documents = read_yaml(&text);
        assert_eq!(documents.len(), 1, "{text}");
        documents.pop().unwrap().content.unwrap_or_else(|e| panic!("{e}: {text}")).to_value()
    }

    #[test]
    fn words_that_some_reader_takes_for_something_else_are_quoted() {
        for word in [
            "yes",
            "on",
            "y",
            "No",
            "true",
            "null",
            "~",
            "1",
            "1e3",
            "0x1",
            "0777",
            "1:30",
            "2026-01-01",
            "",
            " a",
            "a:",
            "a: b",
            "#c",
            "-",
            "<<",
            "=",
            "*a",
            "é",
            "it's",
        ] {
            let text = to_yaml(&json!({"a": word}));
            assert!(text.starts_with("a: '") || text.starts_with("a: \""), "{text}");
            assert_eq!(back(&json!({"a": word})), json!({"a": word}));
        }
    }

    #[test]
    fn a_document_reads_as_a_person_would_write_it() {
        let value = json!({
            "kind": "GarageCluster",
            "spec": {"storage": {"replicas": 3, "env": [{"name": "A", "value": "1"}, [1, []]], "data": {}}, "pools": []},
        });
        assert_eq!(
            to_yaml(&value),
            "kind: GarageCluster\nspec:\n  storage:\n    replicas: 3\n    env:\n    - name: A\n      value: '1'\n    - - 1\n      - []\n    data: {}\n  pools: []\n"
        );
        assert_eq!(back(&value), value);
    }

    #[test]
    fn plain_words_are_what_kubectl_takes_them_for() {
        let (format, documents) = read(
            "a: yes\nb: 010\nc: 1_000\nd: -5\ne: 1e3\nf: 1.2.3\ng: 2Ti\nh:\ni: 'yes'\nj: !!str 5\nk: 0x1F\nl: .5\nm: -\n",
        );
        assert_eq!(format, Format::Yaml);
        assert!(documents[0].content.is_err(), "a bare dash is a list entry");
        let (_, documents) = read(
            "a: yes\nb: 010\nc: 1_000\nd: -5\ne: 1e3\nf: 1.2.3\ng: 2Ti\nh:\ni: 'yes'\nj: !!str 5\nk: 0x1F\nl: .5\n",
        );
        assert_eq!(
            documents[0].content.as_ref().unwrap().to_value(),
            json!({"a": true, "b": 8, "c": 1000, "d": -5, "e": 1000.0, "f": "1.2.3", "g": "2Ti", "h": null, "i": "yes", "j": "5", "k": 31, "l": 0.5})
        );
    }

    #[test]
    fn places_are_lines_and_columns_of_the_file() {
        let text =
            "# first\n---\na: 1\n---\nmetadata:\n  annotations:\n    k: v\n---\n\n---\n{\"x\": {\"y\": 1}}\n";
        let (_, documents) = read(text);
        assert_eq!(documents.len(), 3);
        let node = documents[1].content.as_ref().unwrap();
        let (name, value) = node.get(&["metadata", "annotations"]).unwrap().member("k").unwrap();
        assert_eq!((name.at.to_string(), value.at.to_string()), ("7:5".into(), "7:8".into()));
        let json = "{\"a\":1}\n  {\n \"b\": 2} ";
        let (format, documents) = read(json);
        assert_eq!((format, documents.len()), (Format::Json, 2));
        assert_eq!(documents[1].content.as_ref().unwrap().member("b").unwrap().0.at.to_string(), "3:2");
        assert_eq!(documents[1].content.as_ref().unwrap().at.to_string(), "2:3");
    }

    #[test]
    fn a_broken_document_does_not_hide_the_others() {
        let (_, documents) =
            read("a: 1\n---\nb: [1\n---\nc: 3\n---\nd: 1\nd: 2\n---\ne: *none\n---\nf: &x 1\ng: *x\n");
        let kinds: Vec<bool> = documents.iter().map(|d| d.content.is_ok()).collect();
        assert_eq!(kinds, [true, false, true, false, false, true]);
        assert_eq!(
            documents[3].content.as_ref().unwrap_err().to_string(),
            "8:1: the key \"d\" is given twice"
        );
        assert_eq!(documents[5].content.as_ref().unwrap().to_value(), json!({"f": 1, "g": 1}));
    }

    #[test]
    fn aliases_and_depth_are_bounded() {
        let lines =
            (1..12).map(|i| format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(", ")));
        let bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned() + &lines.collect::<String>();
        assert!(read(&bomb).1[0].content.is_err());
        assert!(read(&"[".repeat(100_000)).1[0].content.is_err());
        assert!(read(&format!("a: {}", "[".repeat(100_000))).1[0].content.is_err());
        assert!(read(&"- ".repeat(100_000)).1[0].content.is_err());
    }

    #[test]
    fn merged_mappings_give_way_to_what_is_said() {
        let (_, documents) = read("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n");
        assert_eq!(documents[0].content.as_ref().unwrap().to_value()["use"], json!({"x": 1, "y": 3}));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[ a-zA-Z0-9:#'\"\\\\{}\\[\\],&*!|>%@`\n\t~.-]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[ a-z:#'0-9<-]{0,6}", inner), 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(value in value()) {
            let value = json!({"root": value});
            prop_assert_eq!(back(&value), value);
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[ a-z:#'\"\\\\{}\\[\\],&*!|>%@`\n\t~.<-]{0,60}") {
            read(&text);
        }
    }
}

//! Conversion of whole files, for `garage-holdfast convert`.

use serde_json::Value;

use super::{GROUP, Version, convert_value};
use crate::manifest::{Format, Position, read, to_yaml};

/// A stream that was not converted; nothing of it is written then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {message}")]
pub struct StreamError {
    /// Where the document begins, or where it is broken.
    pub at: Position,
    /// What is wrong.
    pub message: String,
}

/// Converts every GarageCluster in a YAML or JSON stream, those in lists too. The result is in the format of the input
/// and in its order; documents in which nothing changes keep their text, comments included.
pub fn convert_stream(text: &str, to: Version) -> Result<String, StreamError> {
    let (format, documents) = read(text);
    let mut out = String::new();
    let several = documents.len() > 1;
    for document in documents {
        let node = document.content.map_err(|e| StreamError { at: e.at, message: e.message })?;
        let before = node.to_value();
        let after = convert_document(&before, to)
            .map_err(|e| StreamError { at: node.at, message: e.to_string() })?
            .filter(|after| *after != before);
        match format {
            Format::Yaml => {
                if several || !out.is_empty() {
                    out.push_str("---\n");
                }
                if let Some(after) = after {
                    out.push_str(&to_yaml(&after));
                } else {
                    out.push_str(document.text.trim_matches('\n'));
                    out.push('\n');
                }
            }
            Format::Json => {
                match after {
                    Some(after) => out.push_str(&serde_json::to_string_pretty(&after).unwrap_or_default()),
                    None => out.push_str(document.text),
                }
                out.push('\n');
            }
        }
    }
    Ok(out)
}

/// `None` if nothing in it is of a kind that has two versions.
fn convert_document(value: &Value, to: Version) -> Result<Option<Value>, super::ConvertError> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let ours = text("apiVersion").split('/').next() == Some(GROUP);
    match (text("kind"), value.get("items").and_then(Value::as_array)) {
        ("GarageCluster", _) if ours => convert_value(value, to).map(Some),
        (kind, Some(items)) if kind.ends_with("List") => {
            let own_list = ours && kind == "GarageClusterList";
            let converted =
                items.iter().map(|item| convert_document(item, to)).collect::<Result<Vec<_>, _>>()?;
            if !own_list && converted.iter().all(Option::is_none) {
                return Ok(None);
            }
            let converted: Vec<Value> = converted
                .into_iter()
                .zip(items)
                .map(|(new, old)| new.unwrap_or_else(|| old.clone()))
                .collect();
            let mut list = value.clone();
            if let Value::Object(list) = &mut list {
                list.insert("items".into(), converted.into());
                if own_list {
                    list.insert("apiVersion".into(), to.api_version().into());
                }
            }
            Ok(Some(list))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use serde_json::json;

    use super::*;

    const STREAM: &str = "# the namespace\napiVersion: v1\nkind: Namespace # kept\nmetadata: {name: objects}\n---\napiVersion: garage.rajsingh.info/v1beta1\nkind: GarageCluster\nmetadata:\n  name: site-a\n  annotations:\n    note: 'yes'\nspec:\n  replicas: 3\n  gateway: false\n";

    #[test]
    fn a_yaml_stream_stays_yaml_and_foreign_documents_keep_their_text() {
        let out = convert_stream(STREAM, Version::V1beta2).unwrap();
        assert_eq!(
            out,
            "---\n# the namespace\napiVersion: v1\nkind: Namespace # kept\nmetadata: {name: objects}\n---\napiVersion: garage.rajsingh.info/v1beta2\nkind: GarageCluster\nmetadata:\n  name: site-a\n  annotations:\n    note: 'yes'\n    garage.rajsingh.info/holdfast-carried: '{\"/spec/gateway\":false}'\nspec:\n  storage:\n    replicas: 3\n"
        );
        let back = convert_stream(&out, Version::V1beta1).unwrap();
        let value = |text: &str| read(text).1.pop().unwrap().content.unwrap().to_value();
        assert_eq!(value(&back), value(STREAM));
        assert_eq!(
            convert_stream(&out, Version::V1beta2).unwrap(),
            out,
            "what is there already is not touched"
        );
    }

    #[test]
    fn a_json_stream_stays_json() {
        let object = json!({"apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster", "metadata": {"name": "a"}, "spec": {"gateway": {}}});
        let text = format!("{object}\n{{\"kind\":\"Other\"}}");
        let out = convert_stream(&text, Version::V1beta1).unwrap();
        let values: Vec<Value> =
            serde_json::Deserializer::from_str(&out).into_iter().map(Result::unwrap).collect();
        assert_eq!(values[0]["spec"], json!({"gateway": true}));
        assert!(out.ends_with("{\"kind\":\"Other\"}\n"));
    }

    #[test]
    fn the_items_of_lists_are_converted() {
        let object = json!({"apiVersion": "garage.rajsingh.info/v1beta1", "kind": "GarageCluster", "metadata": {}, "spec": {"replicas": 1}});
        for (api, kind, expected) in [
            ("v1", "List", "v1"),
            ("garage.rajsingh.info/v1beta1", "GarageClusterList", "garage.rajsingh.info/v1beta2"),
        ] {
            let list =
                json!({"apiVersion": api, "kind": kind, "items": [object, {"kind": "Secret"}]}).to_string();
            let out: Value = serde_json::from_str(&convert_stream(&list, Version::V1beta2).unwrap()).unwrap();
            assert_eq!(out["apiVersion"], expected);
            assert_eq!(out["items"][0]["spec"], json!({"storage": {"replicas": 1}}));
            assert_eq!(out["items"][1], json!({"kind": "Secret"}));
        }
    }

    #[test]
    fn a_garage_node_has_one_version_and_passes() {
        let text = "apiVersion: garage.rajsingh.info/v1beta1\nkind: GarageNode\n";
        assert_eq!(convert_stream(text, Version::V1beta2).unwrap(), text);
    }

    #[test]
    fn an_error_says_where() {
        let error = convert_stream("a: 1\n---\nb: [\n", Version::V1beta2).unwrap_err();
        assert!(error.at.line >= 3, "{error}");
        let bad =
            "---\n---\napiVersion: garage.rajsingh.info/v1alpha1\nkind: GarageCluster\nmetadata: {name: x}\n";
        let error = convert_stream(bad, Version::V1beta2).unwrap_err().to_string();
        assert!(error.starts_with("3:1: GarageCluster x:") && error.contains("v1alpha1"), "{error}");
    }
}

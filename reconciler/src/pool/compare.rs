//! Whether an object that exists is already what was rendered.

use serde_json::Value;

/// Whether `found` has everything that `wanted` says. The API server adds defaults, so keys that only
/// `found` has do not count; lists are compared element by element, in order and in number. Quantities
/// are compared by amount (the API server rewrites `1000m` to `1`).
pub fn covers(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| match found.get(key) {
                Some(have) if is_amounts(key) => same_amounts(have, value),
                Some(have) => covers(have, value),
                // An empty list or object and none are the same to the API server.
                None => is_empty(value),
            })
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(f, w)| covers(f, w))
        }
        (found, wanted) => found == wanted,
    }
}

/// Whether `found` has everything of `wanted` and no other keys (labels, annotations, selectors: the API
/// server adds none).
pub fn same_map(found: Option<&Value>, wanted: Option<&Value>) -> bool {
    let size = |value: Option<&Value>| value.and_then(Value::as_object).map_or(0, serde_json::Map::len);
    size(found) == size(wanted)
        && match (found, wanted) {
            (Some(found), Some(wanted)) => covers(found, wanted),
            _ => true,
        }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

fn is_amounts(key: &str) -> bool {
    matches!(key, "requests" | "limits")
}

fn same_amounts(found: &Value, wanted: &Value) -> bool {
    let (Some(found), Some(wanted)) = (found.as_object(), wanted.as_object()) else {
        return covers(found, wanted);
    };
    found.len() == wanted.len()
        && wanted.iter().all(|(name, amount)| {
            found.get(name).is_some_and(|have| match (have.as_str(), amount.as_str()) {
                (Some(a), Some(b)) => a == b || milli(a).is_some_and(|a| Some(a) == milli(b)),
                _ => have == amount,
            })
        })
}

/// A quantity in thousandths.
fn milli(text: &str) -> Option<i128> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let factor: i128 = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1000 * 1000,
        "M" => 1000 * 1_000_000,
        "G" => 1000 * 1_000_000_000,
        "T" => 1000 * 1_000_000_000_000,
        "P" => 1000 * 1_000_000_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        "Pi" => 1000 << 50,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    digits.checked_mul(factor)?.checked_div(scale)
}

/// Bytes of a quantity such as `2Ti`; `None` where it is none, negative, or no whole number of bytes.
pub fn bytes(text: &str) -> Option<u64> {
    let milli = milli(text.trim())?;
    (milli % 1000 == 0).then(|| u64::try_from(milli / 1000).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_of_the_api_server_are_no_difference() {
        let wanted =
            json!({"containers": [{"name": "garage", "env": []}], "schedulingGates": [{"name": "g"}]});
        let found = json!({"restartPolicy": "Always", "containers": [{"name": "garage", "imagePullPolicy": "Always"}],
                           "schedulingGates": [{"name": "g"}]});
        assert!(covers(&found, &wanted));
        assert!(!covers(&wanted, &json!({"containers": [{"name": "garage"}, {"name": "other"}]})));
    }

    #[test]
    fn the_same_amount_in_another_notation_is_no_difference() {
        assert!(covers(&json!({"limits": {"cpu": "1"}}), &json!({"limits": {"cpu": "1000m"}})));
        assert!(!covers(&json!({"limits": {"cpu": "2"}}), &json!({"limits": {"cpu": "1000m"}})));
        assert!(!covers(&json!({"limits": {"cpu": "1", "memory": "1Gi"}}), &json!({"limits": {"cpu": "1"}})));
    }

    #[test]
    fn a_label_too_many_is_a_difference() {
        assert!(!same_map(Some(&json!({"a": "1", "b": "2"})), Some(&json!({"a": "1"}))));
        assert!(same_map(None, Some(&json!({}))));
    }

    #[test]
    fn quantities_are_whole_bytes() {
        assert_eq!(bytes("2Ti"), Some(2_199_023_255_552));
        assert_eq!(bytes("1.5Gi"), Some(1_610_612_736));
        assert_eq!(bytes("1k"), Some(1000));
        assert_eq!(bytes("100m"), None);
        assert_eq!(bytes("much"), None);
    }
}

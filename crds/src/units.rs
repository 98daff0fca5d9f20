//! Quantities and durations as specs write them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

/// Why a quantity or a duration could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUnit(String);

/// A Kubernetes quantity (`2Ti`, `500M`, `1.5Gi`, a plain number), kept as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Quantity(String);

/// What the API server checks a quantity against.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

impl Quantity {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Of so many bytes.
    pub fn from_bytes(bytes: u64) -> Self {
        Self(bytes.to_string())
    }

    /// Its value in whole units, bytes for a size; a fraction counts as one more.
    pub fn bytes(&self) -> Result<u64, InvalidUnit> {
        whole(&self.0).ok_or_else(|| {
            InvalidUnit(format!(
                "a quantity is a number that is not negative with an optional suffix, for example 2Ti; {:?} is not one that this release can count",
                self.0
            ))
        })
    }
}

fn whole(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    if integer.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("{integer}{fraction}").parse().ok()?;
    let mut ten = -i32::try_from(fraction.len()).ok()?;
    let mut two = 0;
    match suffix {
        "" => {}
        "n" => ten -= 9,
        "u" => ten -= 6,
        "m" => ten -= 3,
        "k" => ten += 3,
        "M" => ten += 6,
        "G" => ten += 9,
        "T" => ten += 12,
        "P" => ten += 15,
        "E" => ten += 18,
        "Ki" => two = 10,
        "Mi" => two = 20,
        "Gi" => two = 30,
        "Ti" => two = 40,
        "Pi" => two = 50,
        "Ei" => two = 60,
        exponent => ten += exponent.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?,
    }
    if digits == 0 {
        return Some(0);
    }
    let value = digits.checked_mul(1 << two)?;
    let power = 10u128.checked_pow(ten.unsigned_abs());
    let value = match (ten >= 0, power) {
        (true, power) => value.checked_mul(power?)?,
        (false, Some(power)) => value.div_ceil(power),
        (false, None) => 1,
    };
    u64::try_from(value).ok()
}

impl FromStr for Quantity {
    type Err = InvalidUnit;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let quantity = Self(s.to_owned());
        quantity.bytes().map(|_| quantity)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    // Lenient: a quantity that cannot be counted is found where it is counted, and is named there.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity: a string or a number")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Quantity, E> {
                Ok(Quantity(v.to_owned()))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Quantity, E> {
                Ok(Quantity(v.to_string()))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Quantity, E> {
                Ok(Quantity(v.to_string()))
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Quantity, E> {
                Ok(Quantity(v.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "pattern": QUANTITY_PATTERN,
            "x-kubernetes-int-or-string": true,
        })
    }
}

/// A duration as Kubernetes objects write it (`300s`, `1h30m`, `1.5s`), kept as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DurationText(String);

impl DurationText {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its length; a negative one is refused.
    pub fn duration(&self) -> Result<Duration, InvalidUnit> {
        length(&self.0).ok_or_else(|| {
            InvalidUnit(format!("a duration is written like 300s or 1h30m; {:?} is not one", self.0))
        })
    }
}

fn length(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut total: u128 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let (unit, nanos) = [
            ("ns", 1),
            ("us", 1_000),
            ("µs", 1_000),
            ("μs", 1_000),
            ("ms", 1_000_000),
            ("s", 1_000_000_000),
            ("m", 60_000_000_000),
            ("h", 3_600_000_000_000_u128),
        ]
        .into_iter()
        .find(|(unit, _)| tail.starts_with(unit))?;
        let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
        if integer.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let digits: u128 = format!("{integer}{fraction}").parse().ok()?;
        let divisor = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        total = total.checked_add(digits.checked_mul(nanos)? / divisor)?;
        rest = &tail[unit.len()..];
    }
    // As in Go, a duration is a signed 64-bit number of nanoseconds.
    i64::try_from(total).ok().and_then(|n| u64::try_from(n).ok()).map(Duration::from_nanos)
}

impl FromStr for DurationText {
    type Err = InvalidUnit;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let text = Self(s.to_owned());
        text.duration().map(|_| text)
    }
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for DurationText {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_counted_in_whole_units_rounded_up() {
        for (text, bytes) in [
            ("2Ti", 2_199_023_255_552),
            ("1Ki", 1024),
            ("500M", 500_000_000),
            ("1.5Gi", 1_610_612_736),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1E", 1_000_000_000_000_000_000),
            ("100m", 1),
            ("0.0001Ki", 1),
            (".5k", 500),
            ("5.", 5),
            ("+7", 7),
            ("0", 0),
            ("1n", 1),
        ] {
            assert_eq!(Quantity(text.to_owned()).bytes(), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_countable_quantity_is_refused_by_name() {
        for text in ["", "-1", "1.2.3", "x", "1Zi", "1e", "Ki", ".", "99999999999999999999999", "100Ei"] {
            assert!(Quantity(text.to_owned()).bytes().is_err(), "{text}");
        }
    }

    #[test]
    fn a_quantity_may_be_written_as_a_number() {
        assert_eq!(serde_json::from_value::<Quantity>(json!(2048)).unwrap().bytes(), Ok(2048));
        assert_eq!(serde_json::from_value::<Quantity>(json!("2Ki")).unwrap().bytes(), Ok(2048));
    }

    #[test]
    fn durations_read_as_in_go() {
        for (text, millis) in
            [("300s", 300_000), ("1h30m", 5_400_000), ("1.5s", 1500), ("0", 0), ("100ms", 100)]
        {
            assert_eq!(DurationText(text.to_owned()).duration(), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "-5s", "1d", "1.2.3s", ".s"] {
            assert!(DurationText(text.to_owned()).duration().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_fail_otherwise_than_by_a_refusal(text in "\\PC{0,12}|[0-9.]{0,40}[a-zA-Z0-9]{0,12}") {
            let _ = Quantity(text.clone()).bytes();
            let _ = DurationText(text).duration();
        }

        #[test]
        fn whole_bytes_read_back(bytes in any::<u64>()) {
            prop_assert_eq!(Quantity::from_bytes(bytes).bytes(), Ok(bytes));
        }
    }
}

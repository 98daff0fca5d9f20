//! Finds `request.uid` in a body whose rest cannot be read, so that the answer reaches the one who asked.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

/// The longest `uid` that is echoed; Kubernetes' have 36 characters.
const MAX_UID: usize = 128;

/// The first `request.uid` up to where the body breaks off. `None` when there is none, or an unlikely one.
pub(crate) fn recover(body: &[u8]) -> Option<String> {
    let mut uid = None;
    let mut json = serde_json::Deserializer::from_slice(body);
    // Where it fails does not matter: what was found before stays found.
    let _ = Keys { path: &["request", "uid"], found: &mut uid }.deserialize(&mut json);
    uid.filter(|uid| !uid.is_empty() && uid.len() <= MAX_UID)
}

/// Walks down a path of keys.
struct Keys<'p, 'f> {
    path: &'p [&'static str],
    found: &'f mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Keys<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keys<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((&first, rest)) = self.path.split_first() else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == first && self.found.is_none() {
                map.next_value_seed(Keys { path: rest, found: &mut *self.found })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if self.path.is_empty() {
            *self.found = Some(text.to_owned());
        }
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::recover;

    #[test]
    fn the_uid_is_found_in_whatever_can_be_read_before_it() {
        let found = |body: &str| recover(body.as_bytes());
        assert_eq!(found(r#"{"request":{"uid":"u-1"}}"#).as_deref(), Some("u-1"));
        assert_eq!(
            found(r#"{"kind":3,"request":{"a":[{"uid":"no"}],"uid":"u-2","object":{"#).as_deref(),
            Some("u-2")
        );
        assert_eq!(found(r#"{"request":{"uid":"u-3","uid":"u-4"}}"#).as_deref(), Some("u-3"));
        for none in [
            "",
            "x",
            "[]",
            "null",
            r#"{"request":null}"#,
            r#"{"request":{"uid":7}}"#,
            r#"{"request":{"uid":""}}"#,
        ] {
            assert_eq!(found(none), None, "{none}");
        }
        assert_eq!(found(&format!(r#"{{"request":{{"uid":"{}"}}}}"#, "u".repeat(200))), None);
    }
}

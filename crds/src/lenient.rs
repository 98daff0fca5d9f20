//! Reading what others wrote: what may be odd without making a whole object unreadable.

use std::borrow::Cow;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// An absent, null or empty string is `None`; anything else must parse.
pub fn empty_as_none<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: std::fmt::Display,
{
    match Option::<Cow<'de, str>>::deserialize(deserializer)? {
        None => Ok(None),
        Some(s) if s.is_empty() => Ok(None),
        Some(s) => s.parse().map(Some).map_err(de::Error::custom),
    }
}

//! Waiting for something to become true, on watches and with a deadline.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, Result};

/// All objects that a watch sees.
#[derive(Debug)]
pub struct Seen<K>(BTreeMap<(Option<String>, String), K>);

impl<K> Seen<K> {
    /// The object of a name (the first one, in a watch over all namespaces).
    pub fn get(&self, name: &str) -> Option<&K> {
        self.0.iter().find(|((_, has), _)| has == name).map(|(_, object)| object)
    }

    /// All of them, by namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Watches `api` until `judge` answers `Ok`, at most for `within`.
///
/// `judge` sees all objects of the API (a namespaced one, or everything) after each change, and says in
/// `Err` what is still missing; the last such sentence is in the error when the time is over. The API server
/// may go away and come back in between.
pub async fn until<K, T>(
    api: Api<K>,
    waited_for: &str,
    within: Duration,
    mut judge: impl FnMut(&Seen<K>) -> Result<T, String>,
) -> Result<T>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let deadline = Instant::now() + within;
    let mut events = watch(api, watcher::Config::default()).default_backoff().boxed();
    let mut seen = Seen(BTreeMap::new());
    let mut listed = Seen(BTreeMap::new());
    let mut missing = String::from("nothing was listed yet");
    loop {
        let event = match timeout_at(deadline, events.next()).await {
            Ok(Some(Ok(event))) => event,
            Ok(Some(Err(error))) => {
                missing = format!("the watch failed: {error}");
                continue;
            }
            Ok(None) => return Err(Error::other(format!("the watch ended while waiting for {waited_for}"))),
            Err(_) => {
                return Err(Error::Timeout {
                    waited_for: waited_for.to_owned(),
                    seconds: within.as_secs(),
                    state: missing,
                });
            }
        };
        match event {
            Event::Init => {
                listed = Seen(BTreeMap::new());
                continue;
            }
            Event::InitApply(object) => {
                listed.0.insert(key(&object), object);
                continue;
            }
            Event::InitDone => seen = std::mem::replace(&mut listed, Seen(BTreeMap::new())),
            Event::Apply(object) => {
                seen.0.insert(key(&object), object);
            }
            Event::Delete(object) => {
                seen.0.remove(&key(&object));
            }
        }
        match judge(&seen) {
            Ok(value) => return Ok(value),
            Err(sentence) => missing = sentence,
        }
    }
}

fn key<K: Resource>(object: &K) -> (Option<String>, String) {
    (object.namespace(), object.name_any())
}

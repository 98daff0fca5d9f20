//! What the watches have filled, by cluster: a pass takes its own objects and does not look at those of all others.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use kube::runtime::watcher::Event;
use tokio::sync::watch;

/// The objects of one cluster, by name. Shared with the cache, never cloned.
pub type Objects<K> = Arc<BTreeMap<String, Arc<K>>>;

/// A namespace (empty where there is none), and a name in it.
type Key = (String, String);

/// An object as a cache keeps it.
pub(super) struct Entry<K> {
    pub key: Key,
    pub whose: Whose<K>,
}

/// Whose it is.
pub(super) enum Whose<K> {
    /// Of the cluster of this name, in the object's namespace.
    Of(String, K),
    /// Nobody's.
    Nobodys,
    /// It does not parse, so nobody knows.
    Unknown,
}

/// Objects of one kind.
pub struct Index<K>(Arc<Inner<K>>);

struct Inner<K> {
    shelves: RwLock<Both<K>>,
    filled: watch::Sender<bool>,
}

/// What is there, and a listing that is under way.
struct Both<K> {
    now: Shelves<K>,
    listing: Shelves<K>,
}

struct Shelves<K> {
    of: HashMap<Key, Objects<K>>,
    /// Where each object stands: by cluster, or among those that do not parse.
    places: HashMap<Key, Option<String>>,
    unknown: HashMap<String, usize>,
}

impl<K> Default for Shelves<K> {
    fn default() -> Self {
        Self { of: HashMap::new(), places: HashMap::new(), unknown: HashMap::new() }
    }
}

impl<K> Shelves<K> {
    fn put(&mut self, Entry { key, whose: of }: Entry<K>) {
        match of {
            Whose::Of(cluster, object) => {
                if self.places.get(&key).is_none_or(|stands| stands.as_ref() != Some(&cluster)) {
                    self.remove(&key);
                }
                let objects = self.of.entry((key.0.clone(), cluster.clone())).or_default();
                Arc::make_mut(objects).insert(key.1.clone(), Arc::new(object));
                self.places.insert(key, Some(cluster));
            }
            Whose::Nobodys => self.remove(&key),
            Whose::Unknown => {
                self.remove(&key);
                *self.unknown.entry(key.0.clone()).or_default() += 1;
                self.places.insert(key, None);
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        match self.places.remove(key) {
            Some(Some(cluster)) => {
                let owner = (key.0.clone(), cluster);
                if let Some(shelf) = self.of.get_mut(&owner) {
                    Arc::make_mut(shelf).remove(&key.1);
                    if shelf.is_empty() {
                        self.of.remove(&owner);
                    }
                }
            }
            Some(None) => {
                if let Some(count) = self.unknown.get_mut(&key.0) {
                    *count -= 1;
                }
            }
            None => {}
        }
    }
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for Index<K> {
    fn default() -> Self {
        let shelves = RwLock::new(Both { now: Shelves::default(), listing: Shelves::default() });
        Self(Arc::new(Inner { shelves, filled: watch::Sender::new(false) }))
    }
}

impl<K> Index<K> {
    /// The objects of a cluster.
    pub fn of(&self, namespace: &str, cluster: &str) -> Objects<K> {
        let shelves = self.0.shelves.read().unwrap_or_else(PoisonError::into_inner);
        shelves.now.of.get(&(namespace.to_owned(), cluster.to_owned())).cloned().unwrap_or_default()
    }

    /// Whether every object of the namespace parses: one that does not may be anybody's.
    pub fn is_readable(&self, namespace: &str) -> bool {
        let shelves = self.0.shelves.read().unwrap_or_else(PoisonError::into_inner);
        shelves.now.unknown.get(namespace).is_none_or(|count| *count == 0)
    }

    /// Resolves once it was filled.
    pub async fn filled(&self) {
        // The sender is ours.
        let _ = self.0.filled.subscribe().wait_for(|filled| *filled).await;
    }

    /// Takes what a watch says.
    pub(super) fn take<T>(&self, event: &Event<T>, read: impl Fn(&T) -> Entry<K>) {
        let mut shelves = self.0.shelves.write().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Apply(object) => shelves.now.put(read(object)),
            Event::Delete(object) => shelves.now.remove(&read(object).key),
            Event::Init => shelves.listing = Shelves::default(),
            Event::InitApply(object) => shelves.listing.put(read(object)),
            Event::InitDone => {
                shelves.now = std::mem::take(&mut shelves.listing);
                self.0.filled.send_replace(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Object = (&'static str, Option<&'static str>, u32);

    fn read((name, cluster, content): &Object) -> Entry<u32> {
        let whose = match *cluster {
            Some("") => Whose::Unknown,
            Some(cluster) => Whose::Of(cluster.to_owned(), *content),
            None => Whose::Nobodys,
        };
        Entry { key: ("ns".to_owned(), (*name).to_owned()), whose }
    }

    fn holds(index: &Index<u32>, cluster: &str) -> Vec<(String, u32)> {
        index.of("ns", cluster).iter().map(|(name, object)| (name.clone(), **object)).collect()
    }

    #[test]
    fn each_cluster_has_its_own_objects_as_they_are_now() {
        let index = Index::default();
        let take = |event| index.take(&event, read);
        take(Event::Apply(("x", Some("a"), 1)));
        take(Event::Apply(("y", Some("a"), 2)));
        take(Event::Apply(("z", Some("b"), 3)));
        let before = index.of("ns", "a");
        take(Event::Apply(("x", Some("a"), 4)));
        assert_eq!(holds(&index, "a"), [("x".to_owned(), 4), ("y".to_owned(), 2)]);
        assert_eq!(*before["x"], 1, "what a pass has taken does not change under it");
        take(Event::Apply(("x", Some("b"), 5)));
        assert_eq!(holds(&index, "a"), [("y".to_owned(), 2)], "it went to another cluster");
        assert_eq!(holds(&index, "b"), [("x".to_owned(), 5), ("z".to_owned(), 3)]);
        take(Event::Delete(("z", Some("a"), 0)));
        take(Event::Apply(("x", None, 5)));
        assert!(
            holds(&index, "b").is_empty(),
            "deleted under another label than it had, and nobody's any more"
        );
        assert!(index.of("other", "a").is_empty());
    }

    #[test]
    fn a_new_listing_takes_the_place_of_everything_at_its_end() {
        let index = Index::default();
        let take = |event| index.take(&event, read);
        take(Event::Init);
        take(Event::InitApply(("x", Some("a"), 1)));
        assert!(holds(&index, "a").is_empty());
        assert!(!*index.0.filled.borrow());
        take(Event::InitDone);
        assert!(*index.0.filled.borrow());
        take(Event::Init);
        take(Event::InitApply(("y", Some("a"), 2)));
        assert_eq!(holds(&index, "a"), [("x".to_owned(), 1)]);
        // A listing that is begun anew forgets what it had.
        take(Event::Init);
        take(Event::InitApply(("z", Some("a"), 3)));
        take(Event::InitDone);
        assert_eq!(holds(&index, "a"), [("z".to_owned(), 3)]);
    }

    #[test]
    fn a_namespace_is_readable_when_all_of_it_parses() {
        let index = Index::default();
        let take = |event| index.take(&event, read);
        take(Event::Apply(("x", Some("a"), 1)));
        take(Event::Apply(("x", Some(""), 1)));
        take(Event::Apply(("x", Some(""), 1)));
        assert!(!index.is_readable("ns") && index.is_readable("other"));
        assert!(holds(&index, "a").is_empty());
        take(Event::Apply(("x", Some("a"), 2)));
        assert!(index.is_readable("ns"));
        take(Event::Apply(("x", Some(""), 1)));
        take(Event::Delete(("x", Some(""), 1)));
        assert!(index.is_readable("ns"));
    }
}

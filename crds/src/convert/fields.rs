//! Which spec fields move between the versions (`compat.md` 6 and 7).

/// Fields that v1beta1 keeps at the top of `spec` and v1beta2 in the storage tier.
pub(super) const FLAT: [&str; 13] = [
    "replicas",
    "resources",
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "podAnnotations",
    "podLabels",
    "priorityClassName",
    "securityContext",
    "containerSecurityContext",
    "podDisruptionBudget",
    "capacityReservePercent",
];

/// Whether `key` is one of [`FLAT`].
pub(super) fn is_flat(key: &str) -> bool {
    FLAT.contains(&key)
}

/// Those that a gateway tier has too: all but the reserve, which is about stored data.
pub(super) fn is_gateway_flat(key: &str) -> bool {
    key != "capacityReservePercent" && is_flat(key)
}

/// What v1beta1 keeps in `spec.storage` for a gateway.
pub(super) fn is_gateway_volume(key: &str) -> bool {
    matches!(key, "metadata" | "pvcRetentionPolicy")
}

/// The marker with `words` appended, each once.
pub(super) fn add_words(marker: &str, words: &[&str]) -> String {
    let mut text = marker.to_owned();
    for word in words {
        if text.is_empty() {
            (*word).clone_into(&mut text);
        } else if !text.split(',').any(|w| w == *word) {
            text.push(',');
            text.push_str(word);
        }
    }
    text
}

/// The marker without `words`; `None` when nothing is left.
pub(super) fn remove_words(marker: &str, words: &[&str]) -> Option<String> {
    let left: Vec<&str> = marker.split(',').filter(|w| !words.contains(w)).collect();
    if left.iter().all(|w| w.is_empty()) && left.len() < 2 { None } else { Some(left.join(",")) }
}

//! Conversion over `serde_json::Value`, written to be read: the rules in their plainest form. The property tests
//! hold the byte-level conversion against it.
#![allow(clippy::unreachable)]

use serde_json::{Map, Value};

use super::error::object_name;
use super::fields::{Pointer, Shape, add_words, annotation_pointer, is_flat, remove_words, storage_pointer};
use super::{
    CARRIED_ANNOTATION, ConvertError, GATEWAY_ANNOTATION, GATEWAY_WORD, MARKER_ANNOTATION, POOLS_ANNOTATION,
    POOLS_WORD, Problem, Version,
};

/// Those that a gateway tier has too: all but the reserve, which is about stored data.
fn is_gateway_flat(key: &str) -> bool {
    key != "capacityReservePercent" && is_flat(key)
}

/// What v1beta1 keeps in `spec.storage` for a gateway.
fn is_gateway_volume(key: &str) -> bool {
    matches!(key, "metadata" | "pvcRetentionPolicy")
}

type Object = Map<String, Value>;
/// Values without a place in the target version, by JSON pointer.
type Carried = Map<String, Value>;

pub(super) fn convert(value: &Value, to: Version) -> Result<Value, ConvertError> {
    let Value::Object(object) = value else {
        return Err(ConvertError::new("the object", Problem::NotAnObject(type_name(value))));
    };
    let fail = |problem| ConvertError::new(name_of(object), problem);
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("kind") != "GarageCluster" {
        return Err(fail(Problem::UnknownKind(text("kind").to_owned())));
    }
    let from = Version::from_api_version(text("apiVersion"))
        .ok_or_else(|| fail(Problem::UnknownVersion(text("apiVersion").to_owned())))?;
    let converted = match (from, to) {
        (Version::V1beta1, Version::V1beta2) => up(object).map_err(fail)?,
        (Version::V1beta2, Version::V1beta1) => down(object),
        _ => object.clone(),
    };
    Ok(Value::Object(converted))
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn name_of(object: &Object) -> String {
    let metadata = object.get("metadata");
    let field = |key: &str| metadata.and_then(|m| m.get(key)).and_then(Value::as_str);
    object_name(
        object.get("kind").and_then(Value::as_str).unwrap_or_default(),
        field("namespace"),
        field("name"),
    )
}

fn annotation<'a>(object: &'a Object, key: &str) -> Option<&'a Value> {
    object.get("metadata")?.get("annotations")?.get(key)
}

/// A null or empty carrier counts as none.
fn is_blank(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(_) => false,
    }
}

fn read_carrier(object: &Object, key: &'static str) -> Result<Option<Value>, Problem> {
    let value = annotation(object, key);
    if is_blank(value) {
        return Ok(None);
    }
    let damaged = |why: String| Problem::DamagedAnnotation(key, why);
    let Some(Value::String(text)) = value else { return Err(damaged("its value is not a string".into())) };
    serde_json::from_str(text).map(Some).map_err(|e| damaged(format!("not JSON: {e}")))
}

fn read_object(object: &Object, key: &'static str) -> Result<Option<Object>, Problem> {
    match read_carrier(object, key)? {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(other) => Err(Problem::DamagedAnnotation(
            key,
            format!("expected the JSON text of an object, found {}", type_name(&other)),
        )),
    }
}

/// Removes annotations; an `annotations` and a `metadata` that become empty by it go too.
fn remove_annotations(object: &mut Object, keys: &[&str]) {
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
    let Some(Value::Object(annotations)) = metadata.get_mut("annotations") else { return };
    let before = annotations.len();
    annotations.retain(|k, _| !keys.contains(&k.as_str()));
    if annotations.len() == before || !annotations.is_empty() {
        return;
    }
    metadata.shift_remove("annotations");
    if metadata.is_empty() {
        object.shift_remove("metadata");
    }
}

/// What a place for annotations has to be remembered as, because writing them hides it.
fn carry_place(object: &Object, carried: &mut Carried) {
    match object.get("metadata") {
        None => {}
        Some(Value::Object(metadata)) => match metadata.get("annotations") {
            Some(Value::Object(annotations)) if !annotations.is_empty() => {}
            None | Some(Value::Object(_)) => {
                if metadata.keys().all(|k| k == "annotations") {
                    carried.insert("/metadata".into(), Value::Object(Map::new()));
                }
            }
            Some(other) => {
                carried.insert("/metadata/annotations".into(), other.clone());
            }
        },
        Some(other) => {
            carried.insert("/metadata".into(), other.clone());
        }
    }
}

fn make_object<'a>(parent: &'a mut Object, key: &str) -> &'a mut Object {
    let slot = parent.entry(key).or_insert(Value::Null);
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    match slot {
        Value::Object(map) => map,
        _ => unreachable!("it was just made an object"),
    }
}

fn set_annotation(object: &mut Object, key: &str, value: Value) {
    make_object(make_object(object, "metadata"), "annotations").insert(key.into(), value);
}

fn pointer(text: &str, value: &Value, up: bool) -> Result<Pointer, String> {
    Pointer::parse(text)
        .filter(|p| !up || p.is_from_v1beta2(Shape::of(value.to_string().as_bytes())))
        .ok_or_else(|| format!("{text:?} with this value was not written by a conversion"))
}

/// Puts carried values back where the object says nothing: to v1beta2 (`up`) only what v1beta2 gave, to v1beta1
/// with missing parents made.
fn put_back(object: &mut Object, carried: &Carried, up: bool) -> Result<(), String> {
    for (text, value) in carried {
        match pointer(text, value, up)? {
            // The mere presence of the tier; it was taken into account when the tiers were told apart.
            Pointer::Spec(key) if up && key == "storage" && value.is_object() => {}
            Pointer::Spec(key) => {
                if let Some(Value::Object(spec)) = object.get_mut("spec") {
                    spec.entry(key).or_insert_with(|| value.clone());
                }
            }
            Pointer::Storage(key) => {
                if let Some(Value::Object(spec)) = object.get_mut("spec") {
                    if !up && !spec.contains_key("storage") {
                        spec.insert("storage".into(), Value::Object(Map::new()));
                    }
                    if let Some(Value::Object(storage)) = spec.get_mut("storage") {
                        storage.entry(key).or_insert_with(|| value.clone());
                    }
                }
            }
            Pointer::Metadata => {
                object.entry("metadata").or_insert_with(|| value.clone());
            }
            Pointer::Annotations => {
                if !object.contains_key("metadata") {
                    object.insert("metadata".into(), Value::Object(Map::new()));
                }
                if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
                    metadata.entry("annotations").or_insert_with(|| value.clone());
                }
            }
            Pointer::Annotation(key) => set_annotation(object, key, value.clone()),
        }
    }
    Ok(())
}

fn some<'a>(map: &'a Object, key: &str) -> Option<&'a Value> {
    map.get(key).filter(|v| !v.is_null())
}

/// C2: a v1beta1 spec that declares no tier.
fn looks_like_handle(spec: &Object) -> bool {
    let storage = spec.get("storage").and_then(Value::as_object);
    spec.get("gateway") != Some(&Value::Bool(true))
        && some(spec, "connectTo").is_some()
        && some(spec, "replicas").is_none_or(|r| r.as_f64() == Some(0.0))
        && storage.is_none_or(|s| some(s, "metadata").is_none() && some(s, "data").is_none())
}

fn up(object: &Object) -> Result<Object, Problem> {
    let mut out = object.clone();
    out.insert("apiVersion".into(), Version::V1beta2.api_version().into());
    let gateway_carrier = read_object(object, GATEWAY_ANNOTATION)?;
    let pools = match read_carrier(object, POOLS_ANNOTATION)? {
        Some(other) if !other.is_array() => {
            return Err(Problem::DamagedAnnotation(
                POOLS_ANNOTATION,
                format!("expected the JSON text of an array, found {}", type_name(&other)),
            ));
        }
        pools => pools,
    };
    let had_carried = read_object(object, CARRIED_ANNOTATION)?;
    for (text, value) in had_carried.iter().flatten() {
        pointer(text, value, true).map_err(|why| Problem::DamagedAnnotation(CARRIED_ANNOTATION, why))?;
    }
    let mut words = Vec::new();
    let mut consumed = Vec::new();
    if gateway_carrier.is_some() {
        words.push(GATEWAY_WORD);
        consumed.push(GATEWAY_ANNOTATION);
    }
    if pools.is_some() {
        words.push(POOLS_WORD);
        consumed.push(POOLS_ANNOTATION);
    }
    if had_carried.is_some() {
        consumed.push(CARRIED_ANNOTATION);
    }
    let had_carried = had_carried.unwrap_or_default();
    let mut carried = Carried::new();

    match object.get("spec") {
        Some(Value::Object(spec)) => {
            let spec = up_spec(spec, gateway_carrier, pools, &had_carried, &mut carried)?;
            out.insert("spec".into(), Value::Object(spec));
        }
        _ if pools.is_some() => return Err(Problem::PoolsWithoutStorage),
        _ if gateway_carrier.is_some() => return Err(Problem::GatewayWithoutTier),
        _ => {}
    }

    if !words.is_empty()
        && let Some(Value::String(marker)) = annotation(object, MARKER_ANNOTATION)
    {
        match remove_words(marker, &words) {
            Some(left) => set_annotation(&mut out, MARKER_ANNOTATION, left.into()),
            None => consumed.push(MARKER_ANNOTATION),
        }
    }
    remove_annotations(&mut out, &consumed);
    put_back(&mut out, &had_carried, true)
        .map_err(|why| Problem::DamagedAnnotation(CARRIED_ANNOTATION, why))?;
    write_carried(&mut out, carried, None);
    Ok(out)
}

fn up_spec(
    spec: &Object,
    gateway_carrier: Option<Object>,
    pools: Option<Value>,
    had_carried: &Carried,
    carried: &mut Carried,
) -> Result<Object, Problem> {
    let is_gateway = spec.get("gateway") == Some(&Value::Bool(true));
    let forced = had_carried.get("/spec/storage").is_some_and(Value::is_object);
    let handle = looks_like_handle(spec) && !forced;
    let has_flat = spec.keys().any(|k| is_flat(k));
    let has_carrier = gateway_carrier.is_some() || pools.is_some();
    let live = spec.get("storage");
    let has_storage =
        !is_gateway && !handle && (has_flat || live.is_some_and(Value::is_object) || has_carrier || forced);
    if pools.is_some() && !has_storage {
        return Err(Problem::PoolsWithoutStorage);
    }
    if gateway_carrier.is_some() && !has_storage && !is_gateway {
        return Err(Problem::GatewayWithoutTier);
    }
    let mut out: Object = spec
        .iter()
        .filter(|(k, _)| !is_flat(k) && *k != "storage" && *k != "gateway")
        .map(clone_entry)
        .collect();

    if is_gateway {
        let mut tier = gateway_carrier.unwrap_or_default();
        tier.retain(|k, _| !is_gateway_flat(k));
        for (key, value) in spec.iter().filter(|(k, _)| is_flat(k)) {
            if is_gateway_flat(key) {
                tier.insert(key.clone(), value.clone());
            } else {
                carried.insert(format!("/spec/{key}"), value.clone());
            }
        }
        match live {
            Some(Value::Object(storage)) if !storage.is_empty() => {
                for (key, value) in storage {
                    if is_gateway_volume(key) {
                        tier.insert(key.clone(), value.clone());
                    } else {
                        carried.insert(storage_pointer(key), value.clone());
                    }
                }
            }
            Some(other) => {
                carried.insert("/spec/storage".into(), other.clone());
            }
            None => {}
        }
        out.insert("gateway".into(), Value::Object(tier));
        return Ok(out);
    }

    match spec.get("gateway") {
        Some(Value::Null) if gateway_carrier.is_none() => {
            out.insert("gateway".into(), Value::Null);
        }
        Some(other) => {
            carried.insert("/spec/gateway".into(), other.clone());
        }
        None => {}
    }
    if !has_storage {
        for (key, value) in spec.iter().filter(|(k, _)| is_flat(k)) {
            carried.insert(format!("/spec/{key}"), value.clone());
        }
        match live {
            Some(storage @ Value::Object(_)) => {
                carried.insert("/spec/storage".into(), storage.clone());
            }
            Some(other) => {
                out.insert("storage".into(), other.clone());
            }
            None => {}
        }
        return Ok(out);
    }
    let mut tier: Object = spec.iter().filter(|(k, _)| is_flat(k)).map(clone_entry).collect();
    match live {
        Some(Value::Object(storage)) => {
            if storage.is_empty() && (has_flat || has_carrier) {
                carried.insert("/spec/storage".into(), Value::Object(Map::new()));
            }
            for (key, value) in storage {
                if is_flat(key) || key == "nodeLocalPools" {
                    carried.insert(format!("/spec/storage/{key}"), value.clone());
                } else {
                    tier.insert(key.clone(), value.clone());
                }
            }
        }
        Some(other) => {
            carried.insert("/spec/storage".into(), other.clone());
        }
        None => {}
    }
    if let Some(pools) = pools {
        tier.insert("nodeLocalPools".into(), pools);
    }
    out.insert("storage".into(), Value::Object(tier));
    if let Some(gateway) = gateway_carrier {
        out.insert("gateway".into(), Value::Object(gateway));
    }
    Ok(out)
}

fn clone_entry((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

fn down(object: &Object) -> Object {
    if let Ok(Some(carried)) = read_object(object, CARRIED_ANNOTATION)
        && let Some(out) = down_with(object, Some(&carried))
        && let Ok(back) = up(&out)
        && equal(&back, object)
    {
        return out;
    }
    // Without anything to put back it cannot fail.
    down_with(object, None).unwrap_or_else(|| object.clone())
}

/// Equal, where an empty `annotations` counts as none.
fn equal(a: &Object, b: &Object) -> bool {
    let strip = |o: &Object| {
        let mut o = o.clone();
        if let Some(Value::Object(metadata)) = o.get_mut("metadata")
            && metadata.get("annotations").and_then(Value::as_object).is_some_and(Map::is_empty)
        {
            metadata.shift_remove("annotations");
        }
        o
    };
    strip(a) == strip(b)
}

fn down_with(object: &Object, had_carried: Option<&Carried>) -> Option<Object> {
    let mut out = object.clone();
    out.insert("apiVersion".into(), Version::V1beta1.api_version().into());
    if had_carried.is_some() {
        remove_annotations(&mut out, &[CARRIED_ANNOTATION]);
    }
    let mut carried = Carried::new();
    let mut carriers = Vec::new();
    let mut stored = false;
    if let Some(Value::Object(spec)) = object.get("spec") {
        stored = spec.get("storage").is_some_and(Value::is_object);
        out.insert("spec".into(), Value::Object(down_spec(spec, &mut carried, &mut carriers)));
    }
    if let Some(had) = had_carried {
        put_back(&mut out, had, false).ok()?;
    }
    if stored && out.get("spec").and_then(Value::as_object).is_some_and(looks_like_handle) {
        carried.insert("/spec/storage".into(), Value::Object(Map::new()));
    }

    // What the object itself had under our keys would be read as ours on the way back.
    for key in [GATEWAY_ANNOTATION, POOLS_ANNOTATION] {
        let value = annotation(&out, key);
        if value.is_some() && (!is_blank(value) || carriers.iter().any(|(k, _)| *k == key)) {
            carried.insert(annotation_pointer(key), value.cloned().unwrap_or_default());
            remove_annotations(&mut out, &[key]);
        }
    }
    if !carriers.is_empty() {
        let words: Vec<&str> = carriers
            .iter()
            .map(|(k, _)| if *k == GATEWAY_ANNOTATION { GATEWAY_WORD } else { POOLS_WORD })
            .collect();
        let had = annotation(&out, MARKER_ANNOTATION).cloned();
        let marker = add_words(had.as_ref().and_then(Value::as_str).unwrap_or_default(), &words);
        let back = remove_words(&marker, &words).map(Value::String);
        if let Some(had) = had
            && back.as_ref() != Some(&had)
        {
            carried.insert(annotation_pointer(MARKER_ANNOTATION), had);
            remove_annotations(&mut out, &[MARKER_ANNOTATION]);
        }
        carriers.push((MARKER_ANNOTATION, marker));
    }
    if let Some(had) = annotation(&out, CARRIED_ANNOTATION)
        && (!is_blank(Some(had)) || !carried.is_empty() || !carriers.is_empty())
    {
        carried.insert(annotation_pointer(CARRIED_ANNOTATION), had.clone());
        remove_annotations(&mut out, &[CARRIED_ANNOTATION]);
    }
    write_carried(&mut out, carried, Some(carriers));
    Some(out)
}

/// Writes the carriers and what is carried, after remembering the place that they hide.
fn write_carried(object: &mut Object, mut carried: Carried, carriers: Option<Vec<(&str, String)>>) {
    let carriers = carriers.unwrap_or_default();
    if carriers.is_empty() && carried.is_empty() {
        return;
    }
    carry_place(object, &mut carried);
    for (key, text) in carriers {
        set_annotation(object, key, text.into());
    }
    if !carried.is_empty() {
        set_annotation(object, CARRIED_ANNOTATION, Value::Object(carried).to_string().into());
    }
}

fn down_spec(spec: &Object, carried: &mut Carried, carriers: &mut Vec<(&'static str, String)>) -> Object {
    let storage = spec.get("storage").and_then(Value::as_object);
    let gateway = spec.get("gateway").and_then(Value::as_object);
    let mut out = Object::new();
    for (key, value) in spec {
        match key.as_str() {
            "storage" | "gateway" => {}
            key if is_flat(key) => {
                carried.insert(format!("/spec/{key}"), value.clone());
            }
            _ => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    match (spec.get("gateway"), gateway, storage) {
        (Some(_), Some(tier), Some(_)) => carriers.push((GATEWAY_ANNOTATION, to_text(tier))),
        (Some(_), Some(tier), None) => {
            out.insert("gateway".into(), true.into());
            out.extend(tier.iter().filter(|(k, _)| is_gateway_flat(k)).map(clone_entry));
            let volumes: Object =
                tier.iter().filter(|(k, _)| is_gateway_volume(k)).map(clone_entry).collect();
            if !volumes.is_empty() {
                out.insert("storage".into(), Value::Object(volumes));
            }
            if tier.keys().any(|k| !is_gateway_flat(k) && !is_gateway_volume(k)) {
                carriers.push((GATEWAY_ANNOTATION, to_text(tier)));
            }
        }
        (Some(Value::Null), ..) => {
            out.insert("gateway".into(), Value::Null);
        }
        (Some(other), ..) => {
            carried.insert("/spec/gateway".into(), other.clone());
        }
        (None, ..) => {}
    }
    match (spec.get("storage"), storage) {
        (Some(_), Some(tier)) => {
            let mut rest = Object::new();
            let mut flat = false;
            for (key, value) in tier {
                if is_flat(key) {
                    flat = true;
                    out.insert(key.clone(), value.clone());
                } else if key == "nodeLocalPools" {
                    match value {
                        Value::Array(pools) if !pools.is_empty() => {
                            carriers.push((POOLS_ANNOTATION, value.to_string()));
                        }
                        other => {
                            carried.insert("/spec/storage/nodeLocalPools".into(), other.clone());
                        }
                    }
                } else {
                    rest.insert(key.clone(), value.clone());
                }
            }
            // Something must say that there is a tier.
            if !rest.is_empty() || (!flat && carriers.is_empty()) {
                out.insert("storage".into(), Value::Object(rest));
            }
        }
        (Some(other), None) if gateway.is_some() => {
            carried.insert("/spec/storage".into(), other.clone());
        }
        (Some(other), None) => {
            out.insert("storage".into(), other.clone());
        }
        (None, _) => {}
    }
    out
}

fn to_text(object: &Object) -> String {
    serde_json::to_string(object).unwrap_or_default()
}

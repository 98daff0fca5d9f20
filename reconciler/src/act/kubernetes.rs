//! Writes to the Kubernetes API.

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Error};
use serde_json::{Value, json};

use super::{Answer, Event, FIELD_MANAGER, Kind, Object, Outcome, Refusal, Target};

fn api(client: &Client, target: &Target) -> Api<DynamicObject> {
    let resource = target.kind.api_resource();
    match &target.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn post() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(FIELD_MANAGER.to_owned()) }
}

/// An object's JSON as the client wants it.
fn dynamic(object: &Object) -> Result<DynamicObject, Outcome> {
    serde_json::from_value(object.value.clone()).map_err(|error| {
        Outcome::NotExecuted(Refusal::Denied {
            target: object.target().to_string(),
            message: error.to_string(),
        })
    })
}

/// The stored object, except of a Secret: its content goes nowhere.
fn stored(kind: Kind, object: DynamicObject) -> Outcome {
    if kind == Kind::Secret {
        return Outcome::Executed(Answer::Done);
    }
    match serde_json::to_value(object) {
        Ok(value) => Outcome::Executed(Answer::Stored(value)),
        Err(_) => Outcome::Executed(Answer::Done),
    }
}

/// What an error says about whether the write happened. The API server answers 4xx before it writes;
/// after a 5xx or a broken connection nobody knows.
fn failure(target: &Target, error: &Error) -> Outcome {
    match error {
        Error::Api(status) => match status.code {
            409 => Outcome::NotExecuted(Refusal::Conflict(target.to_string())),
            404 => Outcome::NotExecuted(Refusal::NotFound(target.to_string())),
            // A failed `test` of a JSON patch is answered with 422 and no causes.
            422 if status.details.as_ref().is_none_or(|details| details.causes.is_empty()) => {
                Outcome::NotExecuted(Refusal::Conflict(target.to_string()))
            }
            400..=499 => Outcome::NotExecuted(Refusal::Denied {
                target: target.to_string(),
                message: status.message.chars().take(512).collect(),
            }),
            code => Outcome::Unknown(format!("the API server answered {code}")),
        },
        Error::BuildRequest(_) | Error::HttpError(_) => Outcome::NotExecuted(Refusal::Denied {
            target: target.to_string(),
            message: "the request could not be built".to_owned(),
        }),
        _ => Outcome::Unknown("the connection to the API server broke".to_owned()),
    }
}

pub(super) async fn create(client: &Client, object: &Object) -> Outcome {
    let target = object.target();
    let body = match dynamic(object) {
        Ok(body) => body,
        Err(outcome) => return outcome,
    };
    match api(client, &target).create(&post(), &body).await {
        Ok(made) => stored(target.kind, made),
        // Somebody was faster, maybe we ourselves before a restart: the next pass compares it.
        Err(Error::Api(status)) if status.is_already_exists() => {
            Outcome::NotExecuted(Refusal::Conflict(target.to_string()))
        }
        Err(error) => failure(&target, &error),
    }
}

pub(super) async fn update(client: &Client, object: &Object) -> Outcome {
    let target = object.target();
    let body = match dynamic(object) {
        Ok(body) => body,
        Err(outcome) => return outcome,
    };
    match api(client, &target).replace(&target.name, &post(), &body).await {
        Ok(made) => stored(target.kind, made),
        Err(error) => failure(&target, &error),
    }
}

pub(super) async fn patch(
    client: &Client,
    target: &Target,
    status: bool,
    patch: &json_patch::Patch,
    dry_run: bool,
) -> Outcome {
    let params =
        PatchParams { dry_run, field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let body = Patch::<()>::Json(patch.clone());
    let api = api(client, target);
    let answer = if status {
        api.patch_status(&target.name, &params, &body).await
    } else {
        api.patch(&target.name, &params, &body).await
    };
    match answer {
        Ok(made) => stored(target.kind, made),
        Err(error) => failure(target, &error),
    }
}

pub(super) async fn merge_status(
    client: &Client,
    target: &Target,
    resource_version: &str,
    status: &Value,
) -> Outcome {
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let body = json!({
        "apiVersion": target.kind.api_version(),
        "kind": target.kind.as_str(),
        "metadata": { "resourceVersion": resource_version },
        "status": status,
    });
    match api(client, target).patch_status(&target.name, &params, &Patch::Merge(&body)).await {
        Ok(made) => stored(target.kind, made),
        Err(error) => failure(target, &error),
    }
}

pub(super) async fn delete(client: &Client, target: &Target, uid: &str) -> Outcome {
    let params = DeleteParams::background()
        .preconditions(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
    match api(client, target).delete(&target.name, &params).await {
        Ok(_) => Outcome::Executed(Answer::Done),
        Err(Error::Api(status)) if status.is_not_found() => Outcome::Executed(Answer::Done),
        Err(error) => failure(target, &error),
    }
}

/// Events are a courtesy: one object for each distinct reason and note, so that a repeated one is no write.
pub(super) async fn publish(client: &Client, event: &Event) -> Outcome {
    let regarding = &event.regarding;
    let namespace = regarding.namespace.as_deref().unwrap_or("default");
    let digest = {
        use sha2::{Digest, Sha256};
        hex::encode(&Sha256::digest(format!("{}\0{}\0{}", event.uid, event.reason, event.note))[..8])
    };
    let name = format!("{}.{digest}", regarding.name);
    let body = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": namespace },
        "regarding": {
            "apiVersion": regarding.kind.api_version(),
            "kind": regarding.kind.as_str(),
            "namespace": regarding.namespace,
            "name": regarding.name,
            "uid": event.uid,
        },
        "type": if event.warning { "Warning" } else { "Normal" },
        "reason": event.reason,
        "note": event.note,
        "action": event.reason,
        "reportingController": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
        "eventTime": format!("{:.6}", jiff::Timestamp::now()),
    });
    let target = Target::namespaced(regarding.kind, namespace, &name);
    let resource = kube::api::ApiResource {
        group: "events.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "events.k8s.io/v1".to_owned(),
        kind: "Event".to_owned(),
        plural: "events".to_owned(),
    };
    let events: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let Ok(body) = serde_json::from_value::<DynamicObject>(body) else {
        return Outcome::NotExecuted(Refusal::Denied {
            target: target.to_string(),
            message: "not an event".to_owned(),
        });
    };
    match events.create(&post(), &body).await {
        Ok(_) => Outcome::Executed(Answer::Done),
        Err(Error::Api(status)) if status.is_already_exists() => Outcome::Executed(Answer::Done),
        Err(error) => failure(&target, &error),
    }
}

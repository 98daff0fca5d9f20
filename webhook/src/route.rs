//! One request: which route, whether there is room, the body, the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use holdfast_crds::validate::Kind;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tracing::Span;

use crate::body::{self, Answer, BodyError, Held};
use crate::connection::InFlight;
use crate::limits::Share;
use crate::metrics::{RequestLabels, RouteLabel, VerdictLabels};
use crate::server::Shared;
use crate::{admission, conversion, spans};

/// Path of the conversion route.
pub const CONVERT_PATH: &str = "/convert";
/// Path of the admission route for GarageCluster, both versions.
pub const CLUSTER_PATH: &str = "/validate-garage-rajsingh-info-v1beta2-garagecluster";
/// Path of the admission route for GarageNode.
pub const NODE_PATH: &str = "/validate-garage-rajsingh-info-v1beta1-garagenode";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    Convert,
    Validate(Kind),
}

impl Route {
    fn of(path: &str) -> Option<Self> {
        match path {
            CONVERT_PATH => Some(Self::Convert),
            CLUSTER_PATH => Some(Self::Validate(Kind::GarageCluster)),
            NODE_PATH => Some(Self::Validate(Kind::GarageNode)),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Convert => "convert",
            Self::Validate(Kind::GarageCluster) => "garagecluster",
            Self::Validate(Kind::GarageNode) => "garagenode",
        }
    }
}

/// A request that is not answered with a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    NotFound,
    Method,
    ContentType,
    NoBody,
    Broken,
    TooLarge,
    Deadline,
    /// Which limit.
    Overload(&'static str),
    NoUid,
}

impl Refused {
    const fn status(self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NoBody | Self::Broken | Self::NoUid => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Deadline => StatusCode::REQUEST_TIMEOUT,
            Self::Overload(_) => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// The label of a metric.
    const fn result(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Method => "method",
            Self::ContentType => "content_type",
            Self::NoBody => "no_body",
            Self::Broken => "broken",
            Self::TooLarge => "too_large",
            Self::Deadline => "deadline",
            Self::Overload(_) => "overload",
            Self::NoUid => "no_uid",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::NotFound => "no such route\n",
            Self::Method => "this route takes POST\n",
            Self::ContentType => "this route takes application/json\n",
            Self::NoBody => "the request has no body\n",
            Self::Broken => "the body did not arrive whole\n",
            Self::TooLarge => "the body is too large\n",
            Self::Deadline => "the request took too long\n",
            Self::Overload(_) => "too much at once, try again\n",
            Self::NoUid => "the body is no review: it has no request.uid to answer to\n",
        }
    }
}

/// Results of an answered review that are nobody's decision.
const FAULTS: [&str; 3] = ["undecided", "unreadable", "failed"];

/// Answers one request.
pub(crate) async fn handle(
    request: Request<Incoming>,
    shared: &Arc<Shared>,
    in_flight: Arc<InFlight>,
) -> Response<Answer> {
    let begun = Instant::now();
    let route = Route::of(request.uri().path());
    let version = request.version();
    let name = route.map_or("other", Route::name);
    let span = spans::request(name);
    let outcome = match route {
        Some(route) => serve(route, request, shared, &span).await,
        None => Err(Refused::NotFound),
    };
    let (mut response, result) = match outcome {
        Ok((response, result)) => (response, result),
        Err(refused) => {
            if let Refused::Overload(limit) = refused {
                shared.metrics.overloaded(limit);
            }
            tracing::info!(route = name, result = refused.result(), "a request was not taken");
            (refusal(refused, version), refused.result())
        }
    };
    spans::ended(&span, result, !response.status().is_success() || FAULTS.contains(&result));
    in_flight.answered();
    response.body_mut().hold(Held::InFlight(in_flight));
    shared.metrics.requests.get_or_create(&RequestLabels { route: name, result }).inc();
    shared.metrics.duration.get_or_create(&RouteLabel { route: name }).observe(begun.elapsed().as_secs_f64());
    response
}

fn refusal(refused: Refused, version: Version) -> Response<Answer> {
    let mut response = Response::new(Answer::new(Bytes::from_static(refused.text().as_bytes())));
    *response.status_mut() = refused.status();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    match refused {
        Refused::Overload(_) => drop(headers.insert(RETRY_AFTER, HeaderValue::from_static("1"))),
        Refused::Method => drop(headers.insert(ALLOW, HeaderValue::from_static("POST"))),
        // The rest of the body is not wanted.
        Refused::TooLarge | Refused::Deadline | Refused::Broken if version < Version::HTTP_2 => {
            drop(headers.insert(CONNECTION, HeaderValue::from_static("close")));
        }
        _ => {}
    }
    response
}

fn is_json(request: &Request<Incoming>) -> bool {
    request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).is_some_and(|v| {
        v.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json"))
    })
}

async fn serve(
    route: Route,
    request: Request<Incoming>,
    shared: &Arc<Shared>,
    span: &Span,
) -> Result<(Response<Answer>, &'static str), Refused> {
    if request.method() != Method::POST {
        return Err(Refused::Method);
    }
    if !is_json(&request) {
        return Err(Refused::ContentType);
    }
    let Ok(permit) = shared.requests.clone().try_acquire_owned() else {
        return Err(Refused::Overload("requests"));
    };
    let config = &shared.config;
    let (limit, budget, deadline): (usize, _, Duration) = match route {
        Route::Validate(_) => {
            (config.admission_body_limit, &shared.admission_budget, config.admission_deadline)
        }
        Route::Convert => {
            (shared.conversion_budget.total(), &shared.conversion_budget, config.conversion_deadline)
        }
    };
    let mut share = budget.share();
    let work = async {
        let body = body::read(request.into_body(), limit, &mut share).await.map_err(|e| match e {
            BodyError::TooLarge => Refused::TooLarge,
            BodyError::Overload => Refused::Overload("bytes"),
            BodyError::Broken => Refused::Broken,
        })?;
        if body.is_empty() {
            return Err(Refused::NoBody);
        }
        match route {
            Route::Validate(kind) => validate(kind, &body, shared, span).await,
            Route::Convert => convert(body, shared, span).await,
        }
    };
    let (bytes, result) = match tokio::time::timeout(deadline, work).await {
        Ok(outcome) => outcome?,
        Err(_) => return Err(Refused::Deadline),
    };
    Ok((answer(bytes, share, permit), result))
}

fn answer(bytes: Vec<u8>, share: Share, permit: tokio::sync::OwnedSemaphorePermit) -> Response<Answer> {
    let mut answer = Answer::new(bytes);
    answer.hold(Held::Share(share));
    answer.hold(Held::Permit(permit));
    let mut response = Response::new(answer);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn validate(
    kind: Kind,
    body: &[u8],
    shared: &Shared,
    span: &Span,
) -> Result<(Vec<u8>, &'static str), Refused> {
    let mut out = Vec::with_capacity(512);
    let judged = admission::answer(kind, body, &*shared.lookups, &mut out, span).await;
    let judged = judged.ok_or(Refused::NoUid)?;
    span.record("verdict", judged.verdict).record("rule", judged.rule);
    let labels =
        VerdictLabels { kind: admission::kind_name(kind), verdict: judged.verdict, rule: judged.rule };
    shared.metrics.verdicts.get_or_create(&labels).inc();
    Ok((out, judged.verdict))
}

async fn convert(body: Bytes, shared: &Shared, span: &Span) -> Result<(Vec<u8>, &'static str), Refused> {
    let converted = conversion::answer(body).await.ok_or(Refused::NoUid)?;
    span.record("objects", converted.objects);
    #[expect(clippy::cast_precision_loss, reason = "a count of objects")]
    shared.metrics.converted.observe(converted.objects as f64);
    Ok((converted.bytes, converted.result))
}

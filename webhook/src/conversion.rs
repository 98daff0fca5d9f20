//! The conversion route: `holdfast_crds::convert` on bytes, long lists away from the threads that serve.

use bytes::Bytes;
use holdfast_crds::convert::review;
use holdfast_crds::ids::Quoted;

use crate::uid;

/// Bodies above this are converted on a thread of their own: it is milliseconds of pure computing.
const INLINE_BYTES: usize = 128 << 10;

/// An answered conversion.
pub(crate) struct Converted {
    /// The answer.
    pub bytes: Vec<u8>,
    /// `success` or `failed`.
    pub result: &'static str,
    /// How many objects were asked for.
    pub objects: usize,
}

/// Answers the review in `body`. `None`: there is no `uid` to answer to.
pub(crate) async fn answer(body: Bytes) -> Option<Converted> {
    if body.len() <= INLINE_BYTES {
        return convert(&body);
    }
    tokio::task::spawn_blocking(move || convert(&body)).await.ok().flatten()
}

fn convert(body: &[u8]) -> Option<Converted> {
    // Carriers become fields and the other way round; the size hardly changes.
    let mut bytes = Vec::with_capacity(body.len() + body.len() / 8 + 256);
    let Ok(answered) = review::answer(body, &mut bytes) else {
        // The parser's own words may quote the payload.
        let uid = uid::recover(body)?;
        tracing::warn!(uid = %Quoted(&uid), "a conversion review is unreadable");
        bytes.clear();
        let why = "the ConversionReview is not JSON, or JSON of another shape";
        review::write_failed(&uid, why, &mut bytes);
        return Some(Converted { bytes, result: "unreadable", objects: 0 });
    };
    let failed = answered.failure.is_some();
    if failed {
        tracing::warn!(
            uid = %Quoted(&answered.uid),
            desired = %Quoted(&answered.desired),
            objects = answered.objects,
            "a conversion failed"
        );
    } else {
        tracing::debug!(uid = %Quoted(&answered.uid), objects = answered.objects, "converted");
    }
    let result = if failed { "failed" } else { "success" };
    Some(Converted { bytes, result, objects: answered.objects })
}

//! The product's own waiting times, once (`make soak`).

use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::bed::{Bed, assets};
use holdfast_tests::idle::stays_idle;
use holdfast_tests::suite::TestResult;
use serde_json::json;

use crate::sites;

/// Two rounds of turns with their pauses, and the quiet period of Garage's default rpcTimeout, take about 20 minutes.
const WITHIN: Duration = Duration::from_secs(2400);

/// Longer than the ten minutes in which Garage itself compares its tables once.
const IDLE: Duration = Duration::from_secs(620);

pub async fn the_products_own_waiting_times_end_in_true_on_the_oldest_and_the_newest_garage(
    bed: Arc<Bed>,
) -> TestResult {
    sites::install(&bed).await?;
    let one = async |garage: &str| -> Result<(), holdfast_tests::Error> {
        let mut site = sites::next(garage);
        site.spec = json!({});
        let (site, load) = sites::made(&bed, site).await?;
        site.verify(&bed, "at-leisure", WITHIN).await?;
        // The last value of a proof is written with its end.
        tokio::time::sleep(Duration::from_secs(90)).await;
        stays_idle(&bed, &site, IDLE).await?;
        load.verify().await.map(|_| ())
    };
    tokio::try_join!(one(assets::OLDEST_GARAGE), one(assets::GARAGE))?;
    Ok(())
}

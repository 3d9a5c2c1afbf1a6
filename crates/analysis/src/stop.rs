//! Request of a caller to stop an analysis.

use tokio::sync::watch;

use crate::AnalysisError;

/// Switch that stops an analysis.
#[derive(Debug)]
pub struct StopSwitch(watch::Sender<bool>);

/// Request to stop, as an analysis sees it. The analysis closes its sessions before it ends.
#[derive(Clone, Debug)]
pub struct StopRequest(watch::Receiver<bool>);

impl StopSwitch {
    /// Creates a switch and the request that it makes.
    pub fn new() -> (Self, StopRequest) {
        let (sender, receiver) = watch::channel(false);
        (StopSwitch(sender), StopRequest(receiver))
    }

    /// Stops the analysis.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl StopRequest {
    /// Waits for work, or for the request to stop.
    pub(crate) async fn or<T, E: Into<AnalysisError>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, AnalysisError> {
        let mut requested = self.0.clone();
        let stopped = async {
            if requested.wait_for(|stopped| *stopped).await.is_err() {
                // Without its switch, the analysis cannot be stopped any more.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            done = work => done.map_err(Into::into),
            () = stopped => Err(AnalysisError::Stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::{AnalysisError, StopSwitch};

    #[tokio::test]
    async fn work_ends_when_the_switch_is_used() {
        let (switch, request) = StopSwitch::new();
        let done = request.or(ready(Ok::<_, AnalysisError>(7))).await;
        assert!(matches!(done, Ok(7)));
        let waiting = request.or(pending::<Result<(), AnalysisError>>());
        let (stopped, ()) = tokio::join!(waiting, async { switch.stop() });
        assert!(matches!(stopped, Err(AnalysisError::Stopped)));
        drop(switch);
        let later = request.or(pending::<Result<(), AnalysisError>>()).await;
        assert!(matches!(later, Err(AnalysisError::Stopped)));
    }
}

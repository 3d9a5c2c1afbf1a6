//! Text formats of metrics: Prometheus and OpenMetrics.

/// Format that a scraper asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// Prometheus text format, version 0.0.4.
    Prometheus,
    /// OpenMetrics text format, version 1.0.0.
    OpenMetrics,
}

impl MetricsFormat {
    /// Format that an `Accept` header asks for.
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
            true => MetricsFormat::OpenMetrics,
            false => MetricsFormat::Prometheus,
        }
    }

    /// Content type of the format.
    pub fn content_type(self) -> &'static str {
        match self {
            MetricsFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            MetricsFormat::OpenMetrics => {
                "application/openmetrics-text; version=1.0.0; charset=utf-8"
            }
        }
    }

    /// Converts a text in the OpenMetrics format to this format.
    pub(super) fn convert(self, text: String) -> String {
        match self {
            MetricsFormat::OpenMetrics => text,
            MetricsFormat::Prometheus => to_prometheus(&text),
        }
    }
}

/// In the Prometheus format a counter is declared by the name of its samples, and there are neither units
/// nor an end mark.
fn to_prometheus(text: &str) -> String {
    let is_counter = |name: &str| text.contains(&format!("# TYPE {name} counter\n"));
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
            (Some("#"), Some(kind), Some(name), rest) if is_counter(name) => {
                out += &format!("# {kind} {name}_total {}", rest.unwrap_or_default());
            }
            _ => out += line,
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{MetricsFormat, to_prometheus};

    #[test]
    fn the_accept_header_selects_the_format() {
        use MetricsFormat::{OpenMetrics, Prometheus};
        let both = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        assert_eq!(MetricsFormat::accepted(Some(both)), OpenMetrics);
        assert_eq!(MetricsFormat::accepted(Some("text/plain")), Prometheus);
        assert_eq!(MetricsFormat::accepted(None), Prometheus);
    }

    #[test]
    fn counters_are_declared_by_the_name_of_their_samples() {
        let text = "# HELP a_tokens Tokens.\n# TYPE a_tokens counter\n# UNIT a_tokens x\na_tokens_total 5\n\
                    # TYPE b gauge\nb 1\n# EOF\n";
        let expect = "# HELP a_tokens_total Tokens.\n# TYPE a_tokens_total counter\na_tokens_total 5\n\
                      # TYPE b gauge\nb 1\n";
        assert_eq!(to_prometheus(text), expect);
    }
}

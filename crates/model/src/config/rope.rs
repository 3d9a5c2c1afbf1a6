//! Rotary embedding: frequencies from either of the two ways a configuration describes them,
//! computed in the order and precision of transformers.

use std::f64::consts::PI;

use djinn_types::RopeStyle;

use super::raw::RawConfig;
use crate::error::{KeyProblem, ModelError};
use crate::program::Rope;

/// Parameters that every kind of rotary embedding uses.
struct RopeBase {
    /// Number of elements of a head that are rotated; even.
    dim: usize,
    theta: f64,
    /// Longest context, in tokens.
    context: usize,
}

/// Reads the rotary embedding of heads of `d_head` elements, from `rope_parameters` or from
/// `rope_theta` and `rope_scaling`.
pub(crate) fn rope(
    config: &RawConfig,
    d_head: usize,
    context: usize,
    theta: f64,
) -> Result<Rope, ModelError> {
    // If a file has both keys, transformers uses `rope_scaling`, the old one.
    let old = config.section("rope_scaling")?;
    let params = if old.is_empty() {
        config.section("rope_parameters")?
    } else {
        old
    };
    for per_layer in ["full_attention", "sliding_attention"] {
        if params.has(per_layer) {
            return Err(params.unsupported(
                per_layer,
                "a rotary embedding per layer type is not supported; use one for all layers",
            ));
        }
    }
    let base = RopeBase {
        dim: rotated(config, &params, d_head)?,
        theta: theta_of(config, &params, theta)?,
        context,
    };
    let key = params.spelling(&["rope_type", "type"]);
    let (frequencies, scale) = match params.text(key)?.unwrap_or("default") {
        // Dynamic scaling applies only beyond `max_position_embeddings`. Djinn uses this value as
        // the context, so no session is longer.
        "default" | "dynamic" => (base.frequencies(), 1.0),
        "linear" => (linear(&base, &params)?, 1.0),
        "llama3" => (llama3(&base, config, &params)?, 1.0),
        "yarn" => yarn(&base, config, &params)?,
        other => {
            return Err(params.unsupported(
                key,
                format!(
                    "rope type '{other}' is not supported; supported types: default, linear, \
                     dynamic, llama3, yarn"
                ),
            ));
        }
    };
    if !frequencies.iter().chain([&scale]).all(|f| f.is_finite()) {
        return Err(params.inconsistent(key, "the parameters give frequencies that are not finite"));
    }
    Ok(Rope {
        style: RopeStyle::Halves,
        frequencies,
        scale,
    })
}

/// Returns the unscaled frequencies of `dim` rotated elements, `theta^(-2i/dim)`.
pub(crate) fn plain(dim: usize, theta: f64) -> Vec<f32> {
    powers(dim, theta).into_iter().map(f32::recip).collect()
}

/// Returns `theta^(2i/dim)`. Powers are computed in f64, because f32 powers differ between math
/// libraries.
fn powers(dim: usize, theta: f64) -> Vec<f32> {
    let theta = f64::from(theta as f32);
    (0..dim / 2)
        .map(|i| theta.powf(f64::from((2 * i) as f32 / dim as f32)) as f32)
        .collect()
}

impl RopeBase {
    fn frequencies(&self) -> Vec<f32> {
        plain(self.dim, self.theta)
    }
}

fn rotated(config: &RawConfig, params: &RawConfig, d_head: usize) -> Result<usize, ModelError> {
    const KEY: &str = "partial_rotary_factor";
    let within = params.number(KEY)?;
    let factor = within.or(config.number(KEY)?).unwrap_or(1.0);
    let dim = (d_head as f64 * factor) as usize;
    if dim == 0 || dim > d_head || !dim.is_multiple_of(2) {
        let (of, key) = match within {
            Some(_) => (params, KEY),
            None if config.value(KEY).is_some() => (config, KEY),
            None => (config, "head_dim"),
        };
        return Err(of.unexpected(
            key,
            "an even number of rotated elements",
            format_args!("{dim} of {d_head}"),
        ));
    }
    Ok(dim)
}

fn theta_of(config: &RawConfig, params: &RawConfig, default: f64) -> Result<f64, ModelError> {
    const KEY: &str = "rope_theta";
    let (of, theta) = match params.number(KEY)? {
        Some(theta) => (params, theta),
        None => (config, config.number(KEY)?.unwrap_or(default)),
    };
    if theta > 1.0 && theta < 1e30 {
        Ok(theta)
    } else {
        Err(of.unexpected(KEY, "a number above 1", theta))
    }
}

/// Reads a parameter that has no default.
fn required(params: &RawConfig, key: &str) -> Result<f64, ModelError> {
    params
        .positive(key)?
        .ok_or_else(|| params.error(key, KeyProblem::Missing))
}

/// Reads the context length of the first training, before a later training extended it.
fn original(base: &RopeBase, config: &RawConfig, params: &RawConfig) -> Result<f64, ModelError> {
    const KEY: &str = "original_max_position_embeddings";
    let outer = config.positive(KEY)?;
    let inner = params.positive(KEY)?;
    Ok(outer.or(inner).unwrap_or(base.context as f64))
}

fn linear(base: &RopeBase, params: &RawConfig) -> Result<Vec<f32>, ModelError> {
    let factor = required(params, "factor")? as f32;
    Ok(base.frequencies().into_iter().map(|f| f / factor).collect())
}

fn llama3(base: &RopeBase, config: &RawConfig, params: &RawConfig) -> Result<Vec<f32>, ModelError> {
    let factor = required(params, "factor")? as f32;
    let low = required(params, "low_freq_factor")?;
    let high = required(params, "high_freq_factor")?;
    if high <= low {
        return Err(params.unexpected(
            "high_freq_factor",
            format!("more than low_freq_factor ({low})"),
            high,
        ));
    }
    let context = original(base, config, params)?;
    let (longest, shortest) = ((context / low) as f32, (context / high) as f32);
    let scaled = |frequency: f32| {
        let wavelength = frequency.recip() * (2.0 * PI) as f32;
        if wavelength > longest {
            frequency / factor
        } else if wavelength < shortest {
            frequency
        } else {
            let turns = wavelength.recip() * context as f32;
            let smooth = (turns - low as f32) / (high - low) as f32;
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    };
    Ok(base.frequencies().into_iter().map(scaled).collect())
}

fn yarn(
    base: &RopeBase,
    config: &RawConfig,
    params: &RawConfig,
) -> Result<(Vec<f32>, f32), ModelError> {
    let context = original(base, config, params)?;
    let factor = params
        .positive("factor")?
        .unwrap_or(base.context as f64 / context);
    let scale = yarn_scale(params, factor)?;
    let (low, high) = yarn_range(base, params, context)?;
    // Equal bounds divide by zero; transformers uses this width instead.
    let width = if low == high { 0.001 } else { high - low };
    let frequencies = powers(base.dim, base.theta)
        .into_iter()
        .enumerate()
        .map(|(i, power)| {
            let ramp = ((i as f32 - low as f32) / width as f32).clamp(0.0, 1.0);
            let keep = 1.0 - ramp;
            (factor as f32 * power).recip() * (1.0 - keep) + power.recip() * keep
        })
        .collect();
    Ok((frequencies, scale as f32))
}

/// Returns YaRN's factor on cosines and sines.
fn yarn_scale(params: &RawConfig, factor: f64) -> Result<f64, ModelError> {
    let by = |mscale: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * mscale * factor.ln() + 1.0
        }
    };
    let nonzero = |n: &f64| *n != 0.0;
    let mscale = params.number("mscale")?.filter(nonzero);
    let all = params.number("mscale_all_dim")?.filter(nonzero);
    Ok(match (params.positive("attention_factor")?, mscale, all) {
        (Some(given), _, _) => given,
        (None, Some(mscale), Some(all)) => by(mscale) / by(all),
        _ => by(1.0),
    })
}

/// Returns the range of pairs over which YaRN changes from unscaled to scaled frequencies.
fn yarn_range(base: &RopeBase, params: &RawConfig, context: f64) -> Result<(f64, f64), ModelError> {
    let fast = params.positive("beta_fast")?.unwrap_or(32.0);
    let slow = params.positive("beta_slow")?.unwrap_or(1.0);
    let dim = base.dim as f64;
    let at = |turns: f64| dim * (context / (turns * 2.0 * PI)).ln() / (2.0 * base.theta.ln());
    let (mut low, mut high) = (at(fast), at(slow));
    if params.flag("truncate")?.unwrap_or(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    Ok((low.max(0.0), high.min(dim - 1.0)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{RawConfig, rope};
    use crate::error::{KeyProblem, ModelError};

    fn config(text: &str) -> RawConfig {
        RawConfig::parse(Path::new("config.json"), text.as_bytes()).unwrap()
    }

    /// Frequencies that transformers computes for heads of 16 elements and a context of 2048.
    const DEFAULT: [f32; 8] = [
        1.0,
        0.316_227_76,
        0.1,
        0.031_622_78,
        0.01,
        0.003_162_277_9,
        0.001,
        0.000_316_227_8,
    ];
    const LLAMA3: [f32; 8] = [
        1.0,
        0.079_403_01,
        0.004_700_754,
        0.000_911_583_13,
        0.000_176_776_68,
        3.428_102_4e-5,
        6.647_87e-6,
        1.289_173_2e-6,
    ];
    const YARN: [f32; 8] = [
        1.0,
        0.316_227_76,
        0.1,
        0.025_693_506,
        0.006_25,
        0.001_383_496_6,
        0.000_25,
        7.905_695e-5,
    ];

    #[test]
    fn frequencies_match_transformers() {
        let check = |text: &str, expect: &[f32], scale: f32| {
            let rope = rope(&config(text), 16, 2048, 10000.0).unwrap();
            assert_eq!(rope.frequencies.len(), expect.len(), "{text}");
            for (found, expect) in rope.frequencies.iter().zip(expect) {
                let off = (found - expect).abs() / expect;
                assert!(off < 2e-7, "{text}: {found} is not {expect}");
            }
            assert!((rope.scale - scale).abs() < 1e-6, "{text}: {}", rope.scale);
        };
        check("{}", &DEFAULT, 1.0);
        check(
            r#"{"rope_theta": 10000, "rope_scaling": null}"#,
            &DEFAULT,
            1.0,
        );
        check(
            r#"{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}"#,
            &DEFAULT,
            1.0,
        );
        check(
            r#"{"rope_scaling": {"type": "dynamic", "factor": 2.0}}"#,
            &DEFAULT,
            1.0,
        );
        check(
            r#"{"rope_scaling": {"type": "linear", "factor": 4.0}}"#,
            &DEFAULT.map(|f| f / 4.0),
            1.0,
        );
        check(
            r#"{"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64}}"#,
            &LLAMA3,
            1.0,
        );
        check(
            r#"{"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64}}"#,
            &LLAMA3,
            1.0,
        );
        let yarn =
            |more: &str| format!(r#"{{"rope_scaling": {{"type": "yarn", "factor": 4.0 {more}}}}}"#);
        check(&yarn(""), &YARN, 1.138_629_4);
        check(&yarn(r#", "attention_factor": 0.5"#), &YARN, 0.5);
        check(
            &yarn(r#", "mscale": 2.0, "mscale_all_dim": 2.0"#),
            &YARN,
            1.0,
        );
        check(
            &yarn(r#", "beta_fast": 32, "beta_slow": 1"#),
            &YARN,
            1.138_629_4,
        );
        check(
            &yarn(r#", "truncate": false"#),
            &{
                let mut untruncated = YARN;
                untruncated[3..6].copy_from_slice(&[
                    0.023_870_196,
                    0.005_056_972,
                    0.000_811_290_46,
                ]);
                untruncated
            },
            1.138_629_4,
        );
        // Half of each head: frequencies of heads of 8.
        let half: Vec<f32> = DEFAULT.into_iter().step_by(2).collect();
        check(r#"{"partial_rotary_factor": 0.5}"#, &half, 1.0);
        check(
            r#"{"rope_parameters": {"partial_rotary_factor": 0.5}}"#,
            &half,
            1.0,
        );
    }

    #[test]
    fn errors_name_the_key() {
        let check =
            |text: &str, d_head: usize, expect_key: &str, is_expected: fn(&KeyProblem) -> bool| {
                match rope(&config(text), d_head, 2048, 10000.0).unwrap_err() {
                    ModelError::Key { key, problem, .. } => {
                        assert_eq!(key, expect_key);
                        assert!(is_expected(&problem), "{key}: {problem:?}");
                    }
                    other => panic!("{other}"),
                }
            };
        let unsupported = |problem: &KeyProblem| matches!(problem, KeyProblem::Unsupported(_));
        let unexpected = |problem: &KeyProblem| matches!(problem, KeyProblem::Unexpected { .. });
        check(
            r#"{"rope_scaling": {"rope_type": "longrope"}}"#,
            16,
            "rope_scaling.rope_type",
            unsupported,
        );
        check(
            r#"{"rope_scaling": {"type": "linear"}}"#,
            16,
            "rope_scaling.factor",
            |problem| *problem == KeyProblem::Missing,
        );
        check(
            r#"{"rope_parameters": {"type": "linear", "factor": 0}}"#,
            16,
            "rope_parameters.factor",
            unexpected,
        );
        check("{}", 15, "head_dim", unexpected);
        check(
            r#"{"partial_rotary_factor": 2.0}"#,
            16,
            "partial_rotary_factor",
            unexpected,
        );
        check(r#"{"rope_theta": -3}"#, 16, "rope_theta", unexpected);
        check(
            r#"{"rope_parameters": {"full_attention": {}}}"#,
            16,
            "rope_parameters.full_attention",
            unsupported,
        );
        check(
            r#"{"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
                "high_freq_factor": 1}}"#,
            16,
            "rope_scaling.high_freq_factor",
            unexpected,
        );
    }
}

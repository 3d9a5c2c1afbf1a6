//! Rotary embeddings: from either way a configuration writes them to frequencies,
//! computed in the order and precision transformers uses.

use std::f64::consts::PI;

use djinn_types::RopeStyle;

use crate::program::Rope;
use crate::{ModelError, RawConfig};

/// What every kind of rotary embedding starts from.
struct Base {
    /// Elements of a head that are rotated: even.
    dim: usize,
    theta: f64,
    /// Positions the model can be asked for.
    context: usize,
}

/// Reads `rope_parameters`, or `rope_theta` with `rope_scaling`, of heads of
/// `d_head`.
pub(crate) fn rope(
    config: &RawConfig,
    d_head: usize,
    context: usize,
    theta: f64,
) -> Result<Rope, ModelError> {
    // transformers lets the old key win where both are given.
    let old = config.section("rope_scaling")?;
    let params = if old.is_empty() {
        config.section("rope_parameters")?
    } else {
        old
    };
    for per_layer in ["full_attention", "sliding_attention"] {
        if params.has(per_layer) {
            return Err(params.error(per_layer, "one rope per layer type is not supported"));
        }
    }
    let base = Base {
        dim: rotated(config, &params, d_head)?,
        theta: theta_of(config, &params, theta)?,
        context,
    };
    let key = params.spelling(&["rope_type", "type"]);
    let (frequencies, scale) = match params.text(key)?.unwrap_or("default") {
        // Dynamic scaling sets in beyond `max_position_embeddings`, where no session
        // goes: that is the context.
        "default" | "dynamic" => (base.frequencies(), 1.0),
        "linear" => (linear(&base, &params)?, 1.0),
        "llama3" => (llama3(&base, config, &params)?, 1.0),
        "yarn" => yarn(&base, config, &params)?,
        other => {
            return Err(params.error(
                key,
                format!(
                    "rope type '{other}' is not computed; known: default, linear, dynamic, \
                     llama3, yarn"
                ),
            ));
        }
    };
    if !frequencies.iter().chain([&scale]).all(|f| f.is_finite()) {
        return Err(params.error(key, "its parameters give frequencies that are not finite"));
    }
    Ok(Rope {
        style: RopeStyle::Halves,
        frequencies,
        scale,
    })
}

/// Plain frequencies for `dim` rotated elements: `theta^(-2i/dim)`.
pub(crate) fn plain(dim: usize, theta: f64) -> Vec<f32> {
    powers(dim, theta).into_iter().map(f32::recip).collect()
}

/// `theta^(2i/dim)`: the power in f64, since f32's differs between libraries.
fn powers(dim: usize, theta: f64) -> Vec<f32> {
    let theta = f64::from(theta as f32);
    (0..dim / 2)
        .map(|i| theta.powf(f64::from((2 * i) as f32 / dim as f32)) as f32)
        .collect()
}

impl Base {
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
        return Err(of.error(
            key,
            format!("an even number of elements of a head must be rotated, not {dim} of {d_head}"),
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
        Err(of.error(KEY, format!("expected a number above 1, found {theta}")))
    }
}

/// A parameter that has no default.
fn required(params: &RawConfig, key: &str) -> Result<f64, ModelError> {
    params
        .positive(key)?
        .ok_or_else(|| params.error(key, "missing"))
}

/// Positions the model was first trained for.
fn original(base: &Base, config: &RawConfig, params: &RawConfig) -> Result<f64, ModelError> {
    const KEY: &str = "original_max_position_embeddings";
    let outer = config.positive(KEY)?;
    let inner = params.positive(KEY)?;
    Ok(outer.or(inner).unwrap_or(base.context as f64))
}

fn linear(base: &Base, params: &RawConfig) -> Result<Vec<f32>, ModelError> {
    let factor = required(params, "factor")? as f32;
    Ok(base.frequencies().into_iter().map(|f| f / factor).collect())
}

fn llama3(base: &Base, config: &RawConfig, params: &RawConfig) -> Result<Vec<f32>, ModelError> {
    let factor = required(params, "factor")? as f32;
    let low = required(params, "low_freq_factor")?;
    let high = required(params, "high_freq_factor")?;
    if high <= low {
        return Err(params.error(
            "high_freq_factor",
            format!("expected more than low_freq_factor ({low}), found {high}"),
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
    base: &Base,
    config: &RawConfig,
    params: &RawConfig,
) -> Result<(Vec<f32>, f32), ModelError> {
    let context = original(base, config, params)?;
    let factor = params
        .positive("factor")?
        .unwrap_or(base.context as f64 / context);
    let scale = yarn_scale(params, factor)?;
    let (low, high) = yarn_range(base, params, context)?;
    // Equal bounds would divide by zero; transformers parts them by this much.
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

/// What cosines and sines are multiplied by.
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

/// Between which frequencies interpolation sets in.
fn yarn_range(base: &Base, params: &RawConfig, context: f64) -> Result<(f64, f64), ModelError> {
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

    use super::rope;
    use crate::RawConfig;

    fn config(text: &str) -> RawConfig {
        RawConfig::parse(Path::new("config.json"), text.as_bytes()).unwrap()
    }

    /// What transformers gives for heads of 16 that were trained on 2048 positions.
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
    fn frequencies_are_transformers() {
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
    fn refusals_name_the_key() {
        let check = |text: &str, d_head: usize, expect: &str| {
            let error = rope(&config(text), d_head, 2048, 10000.0).unwrap_err();
            assert_eq!(error.to_string(), format!("config.json: key {expect}"));
        };
        check(
            r#"{"rope_scaling": {"rope_type": "longrope"}}"#,
            16,
            "'rope_scaling.rope_type': rope type 'longrope' is not computed; known: default, \
             linear, dynamic, llama3, yarn",
        );
        check(
            r#"{"rope_scaling": {"type": "linear"}}"#,
            16,
            "'rope_scaling.factor': missing",
        );
        check(
            r#"{"rope_parameters": {"type": "linear", "factor": 0}}"#,
            16,
            "'rope_parameters.factor': expected a number above 0, found 0",
        );
        check(
            "{}",
            15,
            "'head_dim': an even number of elements of a head must be rotated, not 15 of 15",
        );
        check(
            r#"{"partial_rotary_factor": 2.0}"#,
            16,
            "'partial_rotary_factor': an even number of elements of a head must be rotated, not \
             32 of 16",
        );
        check(
            r#"{"rope_theta": -3}"#,
            16,
            "'rope_theta': expected a number above 1, found -3",
        );
        check(
            r#"{"rope_parameters": {"full_attention": {}}}"#,
            16,
            "'rope_parameters.full_attention': one rope per layer type is not supported",
        );
        check(
            r#"{"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
                "high_freq_factor": 1}}"#,
            16,
            "'rope_scaling.high_freq_factor': expected more than low_freq_factor (4), found 1",
        );
    }
}

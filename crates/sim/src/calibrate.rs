// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the numbers of a platform that no datasheet gives, by fitting the model to the
//! published figures of cases without a guard. The model's figures for guarded cases are then
//! predictions.
//!
//! A pattern search (Hooke and Jeeves, "Direct search solution of numerical and statistical
//! problems", 1961): each number is tried a step lower and a step higher within its range; the
//! search continues from the best of these platforms, and halves the steps when none is better.

use schemars::JsonSchema;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::cases::{Case, Facts, Measure};
use crate::platform::{Platform, PlatformError};
use crate::sweep::sweep;

/// One figure of a case, published, modelled, or both.
#[derive(Debug, Clone, PartialEq, serde::Serialize, JsonSchema)]
pub struct Compared {
    /// The case.
    pub case: String,
    /// The figure.
    pub measure: Measure,
    /// The published value; `None` if there is none.
    pub published: Option<f64>,
    /// The model's value.
    pub found: f64,
    /// Relative difference, for shares the absolute one.
    pub difference: Option<f64>,
    /// Whether the platform was fitted to it; otherwise it is a prediction.
    pub fitted: bool,
}

/// A number that may be fitted.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, JsonSchema)]
pub struct Parameter {
    /// Its path in the platform file.
    pub path: String,
    /// The smallest plausible value.
    pub least: u64,
    /// The largest plausible value.
    pub most: u64,
    /// The value before the calibration.
    pub before: u64,
    /// The value after it.
    pub now: u64,
}

/// The result of a calibration.
#[derive(Debug, Clone)]
pub struct Calibrated {
    /// The platform with its new numbers.
    pub platform: Platform,
    /// All numbers that might be changed.
    pub parameters: Vec<Parameter>,
    /// The largest difference of a fitted figure before the calibration.
    pub worst_before: f64,
    /// The same after it.
    pub worst_now: f64,
    /// Platforms that were tried.
    pub tried: usize,
}

impl Calibrated {
    /// Whether the platform differs from the one before.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.parameters.iter().any(|one| one.now != one.before)
    }
}

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The calibration ends when no fitted figure differs by more than this.
    pub within: f64,
    /// The maximum number of platforms to try.
    pub tries: usize,
    /// Spreads the workloads' pages.
    pub seed: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            within: 0.02,
            tries: 400,
            seed: 1,
        }
    }
}

/// The model's figures beside the published ones, for all cases. `told` gets those of the cases
/// that are done, in order.
///
/// # Errors
/// When the platform cannot run a case. `None` if `told` ended the comparison.
pub fn compare(
    platform: &Platform,
    facts: &Facts,
    seed: u64,
    mut told: impl FnMut(&[Vec<Compared>]) -> bool,
) -> Result<Option<Vec<Compared>>, PlatformError> {
    let done = Mutex::new(BTreeMap::new());
    let so_far = || done.lock().unwrap_or_else(PoisonError::into_inner);
    let all: Vec<(usize, &Case)> = facts.cases.iter().enumerate().collect();
    let found = sweep(
        &all,
        |(index, case)| {
            let figures = compared(case, case.run(platform, seed)?);
            so_far().insert(*index, figures.clone());
            Ok(figures)
        },
        |_| {
            let done: Vec<_> = so_far().values().cloned().collect();
            told(&done)
        },
    );
    let Ok(found) = found else {
        return Ok(None);
    };
    let found: Result<Vec<_>, PlatformError> = found.into_iter().collect();
    Ok(Some(found?.concat()))
}

/// The model's figures of a case beside the published ones.
fn compared(case: &Case, figures: BTreeMap<Measure, f64>) -> Vec<Compared> {
    let all = figures.into_iter().map(|(measure, found)| {
        let published = case.published.get(&measure).copied();
        Compared {
            case: case.name.clone(),
            measure,
            published,
            found,
            difference: published.map(|published| measure.difference(found, published)),
            fitted: published.is_some() && may_be_fitted(case, measure),
        }
    });
    all.collect()
}

/// Whether a platform may be fitted to a published figure of a case: to all figures of a case
/// without a guard, and of a guarded case to those that the case names.
#[must_use]
pub fn may_be_fitted(case: &Case, measure: Measure) -> bool {
    case.published.contains_key(&measure) && (case.guard.is_none() || case.fit.contains(&measure))
}

/// Whether a platform may be fitted to any figure of a case.
#[must_use]
pub fn is_fitted_to(case: &Case) -> bool {
    let mut published = case.published.keys();
    published.any(|measure| may_be_fitted(case, *measure))
}

/// The platform's difference from the published figures: the largest difference, and the sum of
/// all, so that among platforms with the same largest difference the one with better other
/// figures wins.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct Distance {
    worst: f64,
    sum: f64,
}

fn distance(platform: &Platform, cases: &[&Case], seed: u64) -> Result<Distance, PlatformError> {
    let mut distance = Distance {
        worst: 0.0,
        sum: 0.0,
    };
    for case in cases {
        let figures: BTreeMap<Measure, f64> = case.run(platform, seed)?;
        let fitted = case.published.iter();
        for (measure, published) in fitted.filter(|(measure, _)| may_be_fitted(case, **measure)) {
            let found = figures.get(measure).copied().unwrap_or(f64::INFINITY);
            let apart = measure.difference(found, *published).abs();
            distance.worst = distance.worst.max(apart);
            distance.sum += apart;
        }
    }
    Ok(distance)
}

/// Fits the platform to the facts' cases without a guard. `told` gets the best platform so far.
/// `None` if `told` ended the search.
///
/// # Errors
/// When the platform cannot run a case.
pub fn calibrate(
    platform: &Platform,
    facts: &Facts,
    limits: Limits,
    mut told: impl FnMut(&Calibrated) -> bool,
) -> Result<Option<Calibrated>, PlatformError> {
    let cases: Vec<&Case> = facts
        .cases
        .iter()
        .filter(|case| is_fitted_to(case))
        .collect();
    let ranges: Vec<(&String, u64, u64)> = platform
        .fit
        .iter()
        .map(|(path, [least, most])| (path, *least, *most))
        .collect();
    let mut steps: Vec<u64> = ranges
        .iter()
        .map(|(_, least, most)| ((most - least) / 4).max(1))
        .collect();
    let mut best = platform.clone();
    let before = distance(&best, &cases, limits.seed)?;
    let mut least = before;
    let mut tried = 1;
    while tried < limits.tries && least.worst > limits.within {
        let mut candidates = Vec::new();
        for ((path, least, most), step) in ranges.iter().zip(&steps) {
            let now = best.get(path).unwrap_or(*least);
            for value in [
                now.saturating_sub(*step).max(*least),
                (now + step).min(*most),
            ] {
                if value != now {
                    candidates.push(best.with(path, value));
                }
            }
        }
        candidates.truncate(limits.tries - tried);
        let mut so_far = calibrated(platform, &best, [before, least], tried);
        let found = sweep(
            &candidates,
            |candidate| distance(candidate, &cases, limits.seed),
            |done| {
                so_far.tried = tried + done;
                told(&so_far)
            },
        );
        let Ok(found) = found else {
            return Ok(None);
        };
        tried += candidates.len();
        let mut better = None;
        for (candidate, found) in candidates.into_iter().zip(found) {
            // A number that the controller cannot have is no candidate.
            if let Ok(found) = found {
                if found < least {
                    least = found;
                    better = Some(candidate);
                }
            }
        }
        match better {
            Some(candidate) => best = candidate,
            None if steps.iter().all(|step| *step == 1) => break,
            None => {
                let ranges = ranges.iter().map(|(_, least, most)| most - least);
                if steps
                    .iter()
                    .zip(ranges)
                    .all(|(step, range)| *step <= range / 256)
                {
                    break;
                }
                steps.iter_mut().for_each(|step| *step = (*step / 2).max(1));
            }
        }
    }
    Ok(Some(calibrated(platform, &best, [before, least], tried)))
}

/// The result of a search that has found `best` and tried this many platforms.
fn calibrated(
    platform: &Platform,
    best: &Platform,
    [before, now]: [Distance; 2],
    tried: usize,
) -> Calibrated {
    let parameters = platform.fit.iter().map(|(path, [least, most])| Parameter {
        path: path.clone(),
        least: *least,
        most: *most,
        before: platform.get(path).unwrap_or(0),
        now: best.get(path).unwrap_or(0),
    });
    Calibrated {
        platform: best.clone(),
        parameters: parameters.collect(),
        worst_before: before.worst,
        worst_now: now.worst,
        tried,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Facts that the model itself produced: a calibration must find the original numbers
    /// again.
    #[test]
    fn what_the_model_made_is_found_again() {
        // All cases to which the platform is fitted.
        let free = ["machine.core.page_walk_ps", "machine.shared.to_memory_ps"];
        let mut pi = Platform::find("raspberry-pi-3").unwrap();
        pi.fit.retain(|path, _| free.contains(&path.as_str()));
        let pi = pi
            .with("machine.shared.to_memory_ps", 16_251)
            .with("machine.shared.from_memory_ps", 14_532)
            .with("machine.core.page_walk_ps", 96_250);
        let far = pi
            .with("machine.shared.to_memory_ps", 5000)
            .with("machine.core.page_walk_ps", 0);
        let mut facts = Facts::parse(
            Path::new("facts.toml"),
            "source = \"the model\"\n[[case]]\nname = \"alone\"\nworkloads = [\"latency\"]\nmemory_bytes = 4194304\n\
             [[case]]\nname = \"guarded\"\nworkloads = [\"latency\"]\nguard = { mib_s = [10] }\n\
             published = { latency_ns = 1.0 }\n",
        )
        .unwrap();
        let told = facts.cases[0].run(&pi, 1).unwrap();
        facts.cases[0]
            .published
            .insert(Measure::LatencyNs, told[&Measure::LatencyNs]);
        let limits = Limits {
            within: 0.01,
            tries: 60,
            seed: 1,
        };
        let found = calibrate(&far, &facts, limits, |_| true).unwrap().unwrap();
        assert!(found.worst_before > 0.1, "{}", found.worst_before);
        assert!(found.worst_now <= 0.01, "{}", found.worst_now);
        for parameter in &found.parameters {
            assert!((parameter.least..=parameter.most).contains(&parameter.now));
        }
        // A guarded case is not fitted to, whatever its figures are.
        let compared = compare(&found.platform, &facts, 1, |_| true)
            .unwrap()
            .unwrap();
        let guarded = |one: &&Compared| one.case == "guarded" && one.published.is_some();
        assert!(!compared.iter().find(guarded).unwrap().fitted);
        assert!(
            calibrate(&far, &facts, limits, |_| false)
                .unwrap()
                .is_none()
        );
        // A search that is ended has told of the best platform until then.
        let mut best = None;
        let ended = calibrate(&far, &facts, limits, |so_far| {
            best = Some(so_far.clone());
            !so_far.is_changed()
        });
        assert!(ended.unwrap().is_none());
        let best = best.unwrap();
        assert!(best.worst_now < best.worst_before, "{best:?}");
        assert!((2..limits.tries).contains(&best.tried), "{best:?}");
    }
}

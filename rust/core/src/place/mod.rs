//! The algorithms: one table, one file each.

mod contiguous;
mod etf;
pub mod favorites;
mod given;
mod repair;
mod sct;
mod topo;
mod units;

use crate::error::{Error, Result};
use crate::list::{self, Policy};
use crate::problem::Problem;
use crate::request::Request;
use crate::rules::Rules;
use crate::schedule::{Decision, Schedule};
use crate::simulate;
use crate::timeline::Book;
use crate::{DeviceId, OpId};

/// One row of the table.
pub struct Algorithm {
    pub name: &'static str,
    pub place: fn(&Request) -> Result<Schedule>,
}

/// All algorithms, in the order in which comparisons show them.
pub const ALGORITHMS: [Algorithm; 10] = [
    Algorithm { name: "single", place: given::single },
    Algorithm { name: "round-robin", place: given::round_robin },
    Algorithm { name: "random", place: given::random },
    Algorithm { name: "contiguous", place: contiguous::place },
    Algorithm { name: "m-topo", place: topo::balanced },
    Algorithm { name: "m-topo-nonuniform", place: topo::to_the_limit },
    Algorithm { name: "m-etf", place: etf::plain },
    Algorithm { name: "m-etf-reserve", place: etf::reserve },
    Algorithm { name: "m-sct", place: sct::plain },
    Algorithm { name: "m-sct-reserve", place: sct::reserve },
];

/// Places with the algorithm of that name.
///
/// # Errors
/// [`Error::Unsupported`] for a name that is not in the table; what the algorithm raises.
pub fn place(name: &str, request: &Request) -> Result<Schedule> {
    let algorithm = ALGORITHMS.iter().find(|algorithm| algorithm.name == name);
    let algorithm =
        algorithm.ok_or_else(|| Error::Unsupported { what: format!("algorithm {name}") })?;
    (algorithm.place)(request)
}

impl Request<'_> {
    /// Runs the ready-queue loop under the request's rules.
    pub(crate) fn list_schedule(
        &self,
        reserve: bool,
        favorites: Option<&[i32]>,
    ) -> Result<Schedule> {
        let policy = Policy { rules: self.rules.for_loop(), favorites, fixed: None };
        match self.rules {
            Rules::Physical => {
                let mut book = Book::new(self.problem, self.caps(), reserve)?;
                let decided = list::run(self.problem, &mut book, policy);
                repair::schedule(self, decided)
            }
            Rules::BaechiTf => {
                let mut timeline = self.tensor_flow(self.caps(), reserve);
                let decision = list::run(self.problem, &mut timeline, policy)?;
                Ok(timeline.into_schedule(&decision))
            }
            Rules::BaechiTorch if reserve => {
                Err(Error::Unsupported { what: "reserving under baechi-torch rules".into() })
            }
            Rules::BaechiTorch => {
                let mut timeline = self.py_torch(self.caps());
                let decision = list::run(self.problem, &mut timeline, policy)?;
                Ok(timeline.into_schedule(&decision))
            }
        }
    }

    /// The schedule of a placement whose launch order is free, within the caps.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if no launch order was found that fits, [`Error::Cancelled`].
    pub fn schedule_given(&self, device: &[DeviceId]) -> Result<Schedule> {
        match self.rules {
            Rules::Physical => {
                let policy =
                    Policy { rules: self.rules.for_loop(), favorites: None, fixed: Some(device) };
                let mut book = Book::of_given(self.problem, self.caps());
                let decision = match list::run(self.problem, &mut book, policy) {
                    // One op after the other may fit where several at a time do not.
                    Err(Error::OutOfMemory { .. } | Error::Stuck { .. }) => Decision {
                        device: device.to_vec(),
                        launch: self.problem.graph.order().to_vec(),
                        not_before: Vec::new(),
                    },
                    decision => decision?,
                };
                simulate::schedule_within_caps(self.problem, &decision)
            }
            Rules::BaechiTf | Rules::BaechiTorch => {
                let schedule = simulate::simulate_given(self, device)?;
                match schedule.over_limit(&self.problem.cluster.cap_bytes) {
                    None => Ok(schedule),
                    Some(device) => Err(over_limit(self.problem, &schedule, device)),
                }
            }
        }
    }
}

/// The error of a placement whose peak exceeds a device.
pub(crate) fn over_limit(problem: &Problem, schedule: &Schedule, device: DeviceId) -> Error {
    let at = device as usize;
    let here = |op: &OpId| schedule.device[*op as usize] == device;
    let first = (0..problem.num_ops()).find(here).unwrap_or(0);
    let op = if schedule.peak_op[at] == OpId::MAX { first } else { schedule.peak_op[at] };
    Error::OutOfMemory {
        op,
        device,
        needed: schedule.peak[at],
        free: problem.cluster.cap_bytes[at],
        placed: Vec::new(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Bytes;
    use crate::cluster::tests::cluster;
    use crate::graph::tests::graph;
    use crate::rules::Retention;

    pub(crate) fn request<'a>(problem: &'a Problem<'a>, rules: Rules) -> Request<'a> {
        Request { colocation: false, ..Request::new(problem, rules) }
    }

    /// Two roomy devices whose transfers take `latency_ns`, half duplex or unlimited as the rules want.
    pub(crate) fn with_request(
        ops: &[crate::Ns],
        edges: &[(i32, i32, Bytes)],
        latency_ns: crate::Ns,
        rules: Rules,
        check: impl FnOnce(&Request),
    ) {
        let graph = graph(ops, edges);
        let channels = if rules == Rules::BaechiTorch { "parallel" } else { "serial" };
        let cluster = cluster(&[1000, 1000], latency_ns, 0, channels);
        let problem = Problem::new(&graph, &cluster, Retention::Liveness, &|| false).unwrap();
        check(&request(&problem, rules));
    }

    #[test]
    fn every_algorithm_places_every_op_and_replays_to_the_same_schedule() {
        let edges = [(0, 1, 5), (0, 2, 5), (1, 3, 5), (2, 3, 5), (3, 4, 9)];
        for rules in [Rules::Physical, Rules::BaechiTf, Rules::BaechiTorch] {
            for algorithm in &ALGORITHMS {
                with_request(&[3, 4, 5, 6, 7], &edges, 2, rules, |given| {
                    let with = Request {
                        favorites: Some(&[1, 3, -1, 4, -1]),
                        ..request(given.problem, rules)
                    };
                    let schedule = match (algorithm.place)(&with) {
                        Err(Error::Unsupported { .. }) => return,
                        schedule => schedule.unwrap(),
                    };
                    let reserve = algorithm.name.ends_with("reserve");
                    let again = simulate::replay_schedule(&with, &schedule, reserve).unwrap();
                    assert_eq!(again.start, schedule.start, "{} {rules:?}", algorithm.name);
                    assert_eq!(again.transfers, schedule.transfers, "{} {rules:?}", algorithm.name);
                });
            }
        }
    }
}

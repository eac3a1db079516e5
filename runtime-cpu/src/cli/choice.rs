//! From the flags to an eviction.

use ecokv::Eviction;
use ecokv_core::methods::{self, Method};
use ecokv_core::{Diversity, HeadBudget, Importance, LayerBudget, Policy, Reference};

use super::args::{CentroidArg, HeadArg, LayerArg, MethodArgs};
use super::output::Failure;

/// A method with its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Name of the method.
    pub name: &'static str,
    /// `None` keeps everything.
    pub eviction: Option<Eviction>,
}

/// The one method that is not run as a policy: nothing is evicted at all.
const FULL: &str = "full";

/// What `--route` is called in reports.
const ROUTE: &str = "route";

/// What does not belong to a method.
const USABLE_WITH_ROUTE: [&str; 5] = ["--budget", "--protect", "--image-budget", "--route", "--head-profile"];

/// Used with `--budget` alone.
const DEFAULT_METHOD: &str = "ecokv";

/// Used with `--method` alone.
const DEFAULT_BUDGET: u32 = 128;

/// The published steepness.
const PYRAMID: LayerBudget = LayerBudget::Pyramid { beta: 20 };

/// The published floor.
const ADAPTIVE: HeadBudget = HeadBudget::Adaptive { floor: 0.2 };

impl Choice {
    /// The method that the flags describe. A flag that the method does not use is an error.
    pub fn new(args: &MethodArgs, seed: u64) -> Result<Choice, Failure> {
        if args.route.is_some() {
            return routed(args);
        }
        let default = if args.budget.is_some() { DEFAULT_METHOD } else { FULL };
        let name = args.method.as_deref().unwrap_or(default);
        let Some(method) = methods::by_name(name) else {
            return Err(Failure::Mendable(format!("--method {name}: there is no such method, see `ecokv methods`")));
        };
        if method.name != FULL {
            let policy = policy(method, args)?.with_seed(seed);
            let layer_budget = match args.layer_budget {
                None => method.layer_budget,
                Some(LayerArg::Uniform) => LayerBudget::Uniform,
                Some(LayerArg::Pyramid) => PYRAMID,
            };
            let budget = args.budget.unwrap_or(DEFAULT_BUDGET);
            return Ok(Choice { name: method.name, eviction: Some(Eviction { policy, layer_budget, budget }) });
        }
        match args.given()[..] {
            [] => Ok(Choice { name: FULL, eviction: None }),
            [flag, ..] => Err(unused(flag, FULL, "which keeps everything: choose another --method")),
        }
    }

    /// A method as it is.
    pub fn named(name: &str, budget: u32) -> Result<Choice, Failure> {
        let budget = (name != FULL).then_some(budget);
        Choice::new(&MethodArgs { method: Some(name.into()), budget, ..MethodArgs::default() }, 0)
    }
}

/// A route brings its own methods; the budget is that of the layers for which it names none.
fn routed(args: &MethodArgs) -> Result<Choice, Failure> {
    if let Some(flag) = args.given().into_iter().find(|f| !USABLE_WITH_ROUTE.contains(f)) {
        return Err(unused(flag, ROUTE, "whose layers have their methods as they are"));
    }
    let method = methods::by_name(DEFAULT_METHOD).ok_or_else(|| Failure::Bug("no default method".into()))?;
    let budget = args.budget.unwrap_or(DEFAULT_BUDGET);
    let eviction = Eviction { policy: method.policy, layer_budget: LayerBudget::Uniform, budget };
    Ok(Choice { name: ROUTE, eviction: Some(eviction) })
}

fn policy(method: &Method, args: &MethodArgs) -> Result<Policy, Failure> {
    let mut policy = method.policy;
    if args.head_profile.is_some() && !policy.needs().head_budgets {
        return Err(unused("--head-profile", method.name, "which does not share its budget by a profile"));
    }
    if let Some(window) = args.window {
        if policy.needs().window_queries == 0 {
            let hint = "which observes no queries: --keep-recent protects the last entries";
            return Err(unused("--window", method.name, hint));
        }
        policy = policy.with_window(window);
    }
    if let Some(recent) = args.keep_recent {
        policy = policy.with_keep_recent(recent);
    }
    let weights = match (args.alpha, args.beta) {
        (None, None) => None,
        (Some(alpha), Some(beta)) => Some((alpha, beta)),
        (Some(alpha), None) => Some((alpha, rest("--alpha", alpha, "--beta")?)),
        (None, Some(beta)) => Some((rest("--beta", beta, "--alpha")?, beta)),
    };
    if let Some((alpha, beta)) = weights {
        if alpha + beta == 0.0 {
            return Err(Failure::Mendable("--alpha 0 --beta 0: one of them must be above 0".into()));
        }
        let flag = if args.alpha.is_some() { "--alpha" } else { "--beta" };
        let unused = || unused(flag, method.name, "which has no diversity term");
        policy = policy.with_geometry(alpha, beta).ok_or_else(unused)?;
    }
    if let Some(centroid) = args.centroid {
        let reference = match centroid {
            CentroidArg::Head => Reference::Mean,
            CentroidArg::Modality => Reference::Modality,
        };
        let unused = || unused("--centroid", method.name, "which does not measure Euclidean distance");
        policy = policy.with_reference(reference).ok_or_else(unused)?;
    }
    if let (Some(images), budget) = (args.image_budget, args.budget.unwrap_or(DEFAULT_BUDGET))
        && images > budget
    {
        return Err(Failure::Mendable(format!("--image-budget {images}: more than the budget of {budget} entries")));
    }
    match args.head_budget {
        None => Ok(policy),
        Some(HeadArg::Uniform) => Ok(policy.with_head_budget(HeadBudget::Uniform)),
        Some(HeadArg::Adaptive) if alike(&policy) => {
            Err(unused("--head-budget adaptive", method.name, "which scores every head alike"))
        }
        Some(HeadArg::Adaptive) => Ok(policy.with_head_budget(ADAPTIVE)),
    }
}

/// The other weight, where they sum to 1.
fn rest(flag: &str, weight: f32, other: &str) -> Result<f32, Failure> {
    if weight > 1.0 {
        return Err(Failure::Mendable(format!("{flag} {weight}: above 1, {other} must be given too")));
    }
    Ok(1.0 - weight)
}

fn alike(policy: &Policy) -> bool {
    matches!((policy.importance, policy.diversity), (Importance::Recency, Diversity::None))
}

fn unused(flag: &str, method: &str, why: &str) -> Failure {
    Failure::Mendable(format!("{flag} is not for method {method}, {why}"))
}

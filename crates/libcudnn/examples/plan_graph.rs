//! Plans graphs for a card that isn't here: `plan_graph HELPER LIBCUDNN CARD GRAPH.json...`
use std::path::PathBuf;
use std::time::Instant;

use keyfold_cudnn::{GraphSpec, Policy};
use keyfold_libcudnn::Profile;
use keyfold_libcudnn::helper::client::{Helpers, Launch};

#[allow(clippy::print_stdout)]
fn main() -> keyfold_core::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let launch = Launch {
        program: PathBuf::from(&args[1]),
        arguments: Vec::new(),
        library: PathBuf::from(&args[2]),
        folders: Vec::new(),
        processes: 2,
        patience: Launch::PATIENCE,
    };
    let helpers = Helpers::new(launch);
    let profile = Profile::named(&args[3])?;
    let policy = Policy { tf32: true, ..Policy::default() };
    for file in &args[4..] {
        let graph = GraphSpec::from_json(&std::fs::read_to_string(file).expect("a file"))?;
        let begun = Instant::now();
        match helpers.plan(&graph, &profile, &policy, &|_| Ok(())) {
            Ok(plan) => println!("{file}: {:?} {:#?}", begun.elapsed(), plan.steps),
            Err(error) => println!("{file}: {:?} {error}", begun.elapsed()),
        }
    }
    Ok(())
}

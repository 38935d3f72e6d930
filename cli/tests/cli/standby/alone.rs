//! A controller that shares its store with no other: its start and its restarts.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_jobs_survive_the_restart_of_a_killed_controller() {
    let bed = Bed::new();
    let mut controller = bed.start("a");
    let client = Client::connect(&bed.address("a"))
        .await
        .expect("it listens");
    drop(client);
    for place in places() {
        let client = Client::connect(&bed.address("a"))
            .await
            .expect("it listens");
        let promised = create_and_kill(&client, &mut controller, place).await;
        controller = bed.start("a");
        let client = Client::connect(&bed.address("a"))
            .await
            .expect("it listens");
        let jobs = check(&client, &promised).await;
        let (promised, there) = (promised.len(), jobs.len());
        eprintln!("killed after {place}: {promised} jobs promised, {there} there");
        for job in jobs {
            client.delete_job(&job).await.expect("it is whole");
        }
        assert_eq!(check(&client, &[]).await, [""; 0]);
    }
}

/// A request that the only controller did not answer is repeated when it is back, and is the same job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_continues_when_the_only_controller_is_restarted() {
    let bed = Bed::new();
    let mut controller = bed.start("a");
    let address = bed.address("a");
    let client = Client::connect(&address).await.expect("it listens");
    let file = bed.path("job.yaml");
    for (name, command) in [("one", &["job", "create"][..]), ("two", &["apply"])] {
        std::fs::write(&file, format!("{{ name: {name}, members: [h1, h3] }}")).expect("written");
        // The controller commits the job, and waits for this switch.
        bed.switches[2].signal(Signal::SIGSTOP);
        let command = [command, &["--file", &file, "--controller", &address]].concat();
        let command = ultima(&command)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        until("it is committed", async || client.job(name).await.is_ok()).await;
        controller.kill();
        bed.switches[2].signal(Signal::SIGCONT);
        controller = bed.start("a");
        let created = command.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&created.stderr);
        assert!(created.status.success(), "{said}");
        let note = "warning: lost the connection to the controller; waiting until it answers again, at most 10 s\n";
        assert!(said.starts_with(note), "{said}");
        until("it answers", async || client.job(name).await.is_ok()).await;
    }
    assert_eq!(check(&client, &[]).await, ["one", "two"]);

    // It does not come back: the command gives up after ten seconds.
    if !full_run() {
        return;
    }
    bed.switches[2].signal(Signal::SIGSTOP);
    std::fs::write(&file, "{ name: three, members: [h1, h3] }").expect("written");
    let command = ["job", "create", "-f", &file, "--controller", &address];
    let command = ultima(&command).stderr(Stdio::piped()).spawn();
    until("it is committed", async || {
        client.job("three").await.is_ok()
    })
    .await;
    controller.kill();
    let failed = command
        .expect("it starts")
        .wait_with_output()
        .expect("it ends");
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(3), "{said}");
    let error = "error: no answer; `ultima get jobs` shows if the controller created anything: ";
    assert!(said.lines().any(|line| line.starts_with(error)), "{said}");
}

/// Without `--state`, jobs are in a file of the user's state folder that is named like the fabric's file and its path.
#[tokio::test]
async fn jobs_survive_in_the_default_file() {
    let bed = Bed::new();
    let start = || {
        let mut command = ultima(&[]);
        command.env("XDG_STATE_HOME", bed.folder.path());
        bed.start_by(command, "a", None, Stdio::inherit())
    };
    for jobs in [vec![], vec![name(1)]] {
        let _controller = start();
        let client = Client::connect(&bed.address("a"))
            .await
            .expect("it listens");
        assert_eq!(check(&client, &[]).await, jobs);
        if jobs.is_empty() {
            client.create_job(&spec(1)).await.expect("there is room");
        }
    }
    let files = std::fs::read_dir(bed.folder.path().join("ultima")).expect("a folder");
    let files: Vec<String> = files
        .map(|file| {
            file.expect("a file")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    let is_named = |file: &String| {
        let digest = file.strip_prefix("fabric-")?.strip_suffix(".redb")?;
        (digest.len() == 16).then_some(())
    };
    assert!(
        files.len() == 1 && files.iter().all(|file| is_named(file).is_some()),
        "{files:?}"
    );
}

/// A controller that listens, and waits for a switch, says that it is starting. Commands wait for it.
#[tokio::test]
async fn commands_wait_for_a_controller_that_is_starting() {
    let mut bed = Bed::new();
    let last = bed.switches.pop().expect("three");
    let grpc = last.address.clone();
    drop(last);
    let fabric = bed.fabric.to_str().expect("a plain path").to_owned();
    let (listen, state) = (bed.address("a"), bed.path("a.redb"));
    let _controller = Controller(
        ultima(&["controller", "serve", "--fabric", &fabric])
            .args(["--listen", &listen, "--state", &state])
            .args(["--startup-timeout", "60s"])
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let at = ["--controller", &listen];
    let starting = format!("error: no controller at {listen} leads: the controller is starting: ");
    until("it listens", async || {
        let output = output(&[&["controller", "status"], &at[..]].concat());
        let (said, text) = (output.stderr, output.stdout);
        let is_starting = String::from_utf8_lossy(&said).starts_with(&starting);
        is_starting && String::from_utf8_lossy(&text).contains(" starting ")
    })
    .await;
    let jobs = ultima(&[&["get", "jobs"], &at[..]].concat())
        .stderr(Stdio::piped())
        .spawn();
    let mut jobs = jobs.expect("it starts");
    let mut said = BufReader::new(jobs.stderr.take().expect("piped")).lines();
    let mut line = || said.next().expect("a line").expect("text");
    let note = format!("waiting for the controller at {listen}, which is starting");
    assert_eq!(line(), note);
    let port = format!("1@unix:{}", bed.path("p3"));
    let switch = ultima(&["switch", "--grpc", &grpc, "-i", &port]).spawn();
    let _switch = Controller(switch.expect("it starts"));
    assert_eq!(line(), "no job found");
    assert_eq!(jobs.wait().expect("it ends").code(), Some(0));
    let described = output(&[&["describe", "jobs"], &at[..]].concat());
    assert_eq!(described.stderr, b"no job found\n", "{described:?}");
}

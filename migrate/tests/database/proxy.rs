//! A way to a server that can be cut, or that loses an answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

#[derive(Default)]
struct Line {
    cut: Notify,
    loses_answer: AtomicBool,
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    line: Arc<Line>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let line = Arc::<Line>::default();
        let shared = line.clone();
        let accepting = tokio::spawn(async move {
            let server = SocketAddr::from(([127, 0, 0, 1], port));
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, shared.clone()));
            }
        });
        Proxy { port: own, line, accepting }
    }

    /// Ends all connections there are. New ones are possible at once.
    pub(crate) fn cut(&self) -> impl Fn() + Send + Sync + 'static {
        let line = self.line.clone();
        move || line.cut.notify_waiters()
    }

    /// The next request reaches the server; its answer is lost, and all connections end.
    pub(crate) fn lose_answer(&self) -> impl Fn() + Send + Sync + 'static {
        let line = self.line.clone();
        move || line.loses_answer.store(true, Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr, line: Arc<Line>) {
    let cut = line.cut.notified();
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let requests = tokio::io::copy(&mut from_client, &mut to_server);
    let answers = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match from_server.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) if line.loses_answer.swap(false, Ordering::SeqCst) => {
                    line.cut.notify_waiters();
                    return;
                }
                Ok(size) => {
                    if to_client.write_all(&buffer[..size]).await.is_err() {
                        return;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = cut => {}
        _ = requests => {}
        () = answers => {}
    }
}

// A small Node HTTP server with the pg package behind it, as a peer to measure against: GET /select
// answers with one row, GET /insert with the id of a committed row. Started by node_peer.py.
'use strict';
const http = require('http');
const { Pool } = require('pg');

const pool = new Pool({ max: 16 });
const statements = {
    '/select': { name: 'select', text: 'SELECT id, body FROM rows WHERE id = $1', values: [1] },
    '/insert': {
        name: 'insert',
        text: 'INSERT INTO rows (body) VALUES ($1) RETURNING id, body',
        values: ['bench'],
    },
};

const server = http.createServer(async (request, response) => {
    const statement = statements[request.url];
    let status = statement ? 200 : 404;
    let body = {};
    if (statement) {
        try {
            body = (await pool.query(statement)).rows[0];
        } catch (error) {
            status = 503;
            body = { error: error.message };
        }
    }
    response.writeHead(status, { 'Content-Type': 'application/json' });
    response.end(JSON.stringify(body));
});

server.listen(0, '127.0.0.1', () => console.log(server.address().port));

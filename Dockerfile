# Bookies, autorecovery and the command line. docker-compose.yml runs a cluster of them.
FROM python:3.12-slim
WORKDIR /opt/quire
COPY constraints.txt setup.cfg pyproject.toml README.md LICENSE ./
COPY wire wire
COPY runtime runtime
COPY metadata metadata
COPY bookie bookie
COPY ledger_client ledger_client
COPY autorecovery autorecovery
COPY spark spark
COPY quire quire
COPY pyspark_ledger.py ./
RUN pip install --no-cache-dir --constraint constraints.txt ".[bookie]" \
    && useradd --system --create-home quire \
    && install -d -o quire /var/lib/quire
USER quire
VOLUME /var/lib/quire
EXPOSE 3181 8080 8780
STOPSIGNAL SIGTERM
ENTRYPOINT ["quire"]
CMD ["--help"]
